// Block sizes of many pretended caches. (That results are right with all of them the other checks
// see: their problems draw a cache.)
#include "../blocks.h"

#include "check.h"

namespace eyeline {

namespace {

Caches second(int64_t bytes) {
  Caches made;
  made.level2 = bytes;
  return made;
}

void one(Findings& findings, int64_t level2, int64_t D, int64_t Dv) {
  const std::string what = std::to_string(level2) + " bytes, D " + std::to_string(D);
  const Blocks found = blocks(second(level2), D, Dv), larger = blocks(second(2 * level2), D, Dv);
  findings.expect(found.keys >= 64 && MOST_KEYS % found.keys == 0, what + ": keys");
  findings.expect(found.held >= 4 && found.held <= MOST_HELD, what + ": strips held");
  findings.expect(found.strips >= 64 && found.strips <= 128, what + ": strips");
  findings.expect(found.keys == 64 || found.keys * D * 4 <= level2 / 2, what + ": keys do not fit");
  findings.expect(found.keys <= larger.keys && found.strips <= larger.strips,
                  what + ": a larger cache has less in it");
  findings.expect(found.keys == blocks(second(level2), D, 1).keys, what + ": values matter");
}

const Check check("blocks", [](const Table&, Findings& findings) {
  for (int64_t level2 = 0; level2 <= int64_t{1} << 40; level2 = level2 ? 2 * level2 : 1)
    for (const int64_t D : {0, 1, 64, 80, 128, 256, 10000}) one(findings, level2, D, D);
  findings.expect(blocks(second(16 << 10), 64, 64).keys < blocks(second(1 << 20), 64, 64).keys,
                  "a small cache has less in it");
  findings.expect(blocks(Caches{}, 64, 64).keys == MOST_KEYS, "unknown caches are modest ones");
  ++findings.done;
});

}  // namespace

}  // namespace eyeline
