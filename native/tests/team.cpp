// Threads that share work: each part once, several callers at once, an interrupt, no memory.
#include "../team.h"

#include <atomic>
#include <thread>

#include "../forward.h"
#include "check.h"
#include "definition.h"
#include "error.h"
#include "problems.h"

namespace eyeline {

namespace {

constexpr int parts = 500, callers = 4;

struct Counts {
  std::atomic<int> of[parts] = {};

  static void run(const void* self, int64_t part, char* memory, const Watch&) {
    memory[0] = 1;
    ++const_cast<Counts*>(static_cast<const Counts*>(self))->of[part];
  }

  bool each(int times) const {
    for (const auto& count : of)
      if (count != times) return false;
    return true;
  }
};

void each_part_once(Findings& findings) {
  for (const int size : {1, 2, 3, 8}) {
    Counts counts;
    findings.expect(share({parts, 64, Counts::run, &counts}, size, Watch{}), "no memory");
    findings.expect(counts.each(1), "each part once");
  }
  Counts counts;
  std::vector<std::thread> threads;
  for (int i = 0; i < callers; ++i)
    threads.emplace_back([&] { share({parts, 64, Counts::run, &counts}, 2, Watch{}); });
  for (std::thread& thread : threads) thread.join();
  findings.expect(counts.each(callers), "each part once for each of several callers");
}

void stopping(Findings& findings) {
  int stopped = 0;
  const auto poll = [](void* self) { __atomic_store_n(static_cast<int*>(self), 1, __ATOMIC_RELAXED); };
  for (const int size : {1, 3}) {
    Counts counts;
    stopped = 0;
    share({parts, 64, Counts::run, &counts}, size, Watch{poll, &stopped, &stopped});
    findings.expect(stopped == 1, "the calling thread is asked");
  }
}

void no_memory(Findings& findings) {
  Counts counts;
  constexpr int64_t far_too_much = int64_t{1} << 60;
  for (const int size : {1, 3})
    findings.expect(!share({parts, far_too_much, Counts::run, &counts}, size, Watch{}),
                    "more memory than there is is refused");
  findings.expect(counts.each(0), "and nothing is done");
}

const Check check("team", [](const Table&, Findings& findings) {
  each_part_once(findings);
  stopping(findings);
  no_memory(findings);
  ++findings.done;
});

}  // namespace

}  // namespace eyeline
