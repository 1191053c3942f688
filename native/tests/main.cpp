// Every check of every table that this processor can run.
//
//   native_tests [--problems N] [--table NAME]
#include <cstdlib>
#include <cstring>

#include "../caches.h"
#include "../team.h"
#include "check.h"

namespace eyeline {

namespace {

constexpr size_t most_lines = 10;  // of one check's failures

// What Python's tests ask for as well: scratch memory is NaN wherever it has not been written.
bool passed(const Check& check, const Table& table, int64_t problems) {
  Findings findings;
  findings.problems = problems;
  poison(true);
  check.run(table, findings);
  std::printf("%-11s %-10s %5lld done, worst error %.2f of what is allowed: %s\n", table.name,
              check.name, static_cast<long long>(findings.done), findings.worst,
              findings.wrong.empty() ? "passed" : "FAILED");
  for (size_t i = 0; i < findings.wrong.size() && i < most_lines; ++i)
    std::printf("    %s\n", findings.wrong[i].c_str());
  std::fflush(stdout);
  return findings.wrong.empty();
}

int run(int64_t problems, const char* only) {
  int count = 0, good = 0, bad = 0;
  const Table* const* all = tables(&count);
  std::printf("compiled: %s\nthis processor runs:", EYELINE_COMPILED);
  for (int i = 0; i < count; ++i) std::printf(" %s", all[i]->name);
  std::printf("\ncaches: %lld, %lld, %lld bytes\n", static_cast<long long>(caches().level1),
              static_cast<long long>(caches().level2), static_cast<long long>(caches().level3));
  for (int i = 0; i < count; ++i)
    for (const Check* check : Check::all())
      if (!only || std::strcmp(only, all[i]->name) == 0)
        ++(passed(*check, *all[i], problems) ? good : bad);
  std::printf("%d passed, %d failed\n", good, bad);
  return bad == 0 && good > 0 ? 0 : 1;
}

}  // namespace

}  // namespace eyeline

int main(int count, char** words) {
  long long problems = 300;
  const char* only = nullptr;
  for (int i = 1; i + 1 < count; i += 2) {
    if (std::strcmp(words[i], "--problems") == 0) problems = std::atoll(words[i + 1]);
    if (std::strcmp(words[i], "--table") == 0) only = words[i + 1];
  }
  return eyeline::run(problems, only);
}
