// Block sizes of many pretended caches, and that the problems of the other checks are drawn so that
// these see results with all of them.
#include "../blocks.h"

#include "check.h"
#include "problems.h"

namespace eyeline {

namespace {

Caches second(int64_t bytes) {
  Caches made;
  made.level2 = bytes;
  return made;
}

// What every pass owes. `floats` are laid out of each key and of each row, `scores` of each pair.
struct Pass {
  const char* name;
  Blocks (*sizes)(const Caches& caches, int64_t D);
  int most_keys, most_strips;
  int64_t floats, scores;
};

const Pass passes[] = {
    {"forward", [](const Caches& caches, int64_t D) { return blocks(caches, D, D); }, MOST_KEYS, 128,
     2, 1},
    {"backward", backward_blocks, MOST_BACKWARD_KEYS, 176, 5, 2}};

void one(Findings& findings, const Pass& pass, int64_t level2, int64_t D) {
  const std::string what = std::string(pass.name) + ", " + std::to_string(level2) + " bytes, D " +
                           std::to_string(D);
  const Blocks found = pass.sizes(second(level2), D), larger = pass.sizes(second(2 * level2), D);
  const int64_t line = pass.floats * D * 4, strip = STRIP_ROWS * found.keys * pass.scores * 4;
  findings.expect(found.keys >= 64 && pass.most_keys % found.keys == 0, what + ": keys");
  findings.expect(found.held >= 4 && found.held <= MOST_HELD, what + ": strips held");
  findings.expect(found.strips >= FEWEST_STRIPS && found.strips <= pass.most_strips,
                  what + ": strips");
  findings.expect(found.keys == 64 || found.keys * line <= level2, what + ": keys do not fit");
  findings.expect(found.keys == pass.most_keys || 2 * found.keys * line > level2,
                  what + ": more keys would fit");
  findings.expect(found.held == 4 || found.held * strip <= level2 / 4, what + ": scores do not fit");
  findings.expect(found.strips == FEWEST_STRIPS || found.strips * STRIP_ROWS * line <= 2 * level2,
                  what + ": rows do not fit");
  findings.expect(found.keys <= larger.keys && found.strips <= larger.strips,
                  what + ": a larger cache has less in it");
}

// Of the drawn problems, those in which a pass over blocks of these sizes has more than one of each.
struct Met {
  int blocks = 0, groups = 0, parts = 0, sizes = 0;

  void add(const Problem& p, const Blocks& of, int most_keys) {
    const int64_t rows = p.Tq * p.group();
    blocks += p.Tk > of.keys;
    groups += rows > of.held * STRIP_ROWS;
    parts += rows > of.strips * STRIP_ROWS;
    sizes += of.keys < most_keys && p.Tk > of.keys;
  }

  void expect_all(Findings& findings, const std::string& what) const {
    constexpr int some = 5;
    findings.expect(blocks >= some, what + ": few problems of several blocks");
    findings.expect(groups >= some, what + ": few problems of several groups of strips");
    findings.expect(parts >= some, what + ": few problems of several parts of rows");
    findings.expect(sizes >= some, what + ": few problems of small blocks");
  }
};

const Check check("blocks", [](const Table&, Findings& findings) {
  for (const Pass& pass : passes)
    for (int64_t level2 = 0; level2 <= int64_t{1} << 40; level2 = level2 ? 2 * level2 : 1)
      for (const int64_t D : {1, 64, 80, 128, 256, 10000}) one(findings, pass, level2, D);
  for (const int64_t level2 : {0, 64 << 10, 1 << 20})
    findings.expect(blocks(second(level2), 80, 1).keys == blocks(second(level2), 80, 10000).keys,
                    "values matter for how many keys a block has");
  findings.expect(blocks(second(1 << 20), 0, 0).keys == MOST_KEYS, "keys of no numbers");
  findings.expect(blocks(Caches{}, 64, 64).keys == MOST_KEYS, "unknown caches are modest ones");
  Met forward, backward;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Drawn drawn(seed);
    forward.add(drawn.problem, drawn.problem.blocks, MOST_KEYS);
    backward.add(drawn.problem, drawn.problem.backward, MOST_BACKWARD_KEYS);
  }
  forward.expect_all(findings, "forward");
  backward.expect_all(findings, "backward");
  ++findings.done;
});

}  // namespace

}  // namespace eyeline
