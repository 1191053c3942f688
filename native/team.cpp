#include "team.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace eyeline {

namespace {

std::atomic<bool> taken{false};
std::atomic<bool> forked{false};
std::atomic<bool> poisoning{false};

struct AtFork {
  AtFork() {
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
  }
};
const AtFork at_fork;

// Memory of one thread, kept for the next call unless it is large.
class Memory {
 public:
  ~Memory() { std::free(data_); }

  char* of(int64_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      const int64_t whole = (bytes + alignment - 1) / alignment * alignment;
      data_ = static_cast<char*>(std::aligned_alloc(alignment, whole));
      size_ = data_ ? whole : 0;
    }
    return data_;
  }

  void shrink() {
    if (size_ <= kept) return;
    std::free(data_);
    data_ = nullptr;
    size_ = 0;
  }

 private:
  static constexpr int64_t alignment = 4096;
  static constexpr int64_t kept = 8 << 20;
  char* data_ = nullptr;
  int64_t size_ = 0;
};

thread_local Memory memory_of_thread;

struct Shared {
  const Work& work;
  std::atomic<int64_t> next{0};
  std::atomic<bool> starved{false};
};

void take_parts(Shared& shared, const Watch& watch) {
  char* memory = memory_of_thread.of(shared.work.memory);
  if (!memory) {
    shared.starved = true;
    return;
  }
  while (!watch.stop()) {
    const int64_t part = shared.next.fetch_add(1, std::memory_order_relaxed);
    if (part >= shared.work.parts) break;
    if (poisoning) std::memset(memory, 0xff, static_cast<size_t>(shared.work.memory));
    shared.work.run(shared.work.self, part, memory, watch);
  }
  memory_of_thread.shrink();
}

// Calls on `size` threads, the one at hand among them, which alone is told that it is calling.
//
// In the Python module compiled with -fopenmp and not linked to libgomp: torch brings its own, under
// a name that differs between its wheels, and two of them in one process would be two sets of
// threads. Without OpenMP they are plain threads, which ThreadSanitizer can see through.
template <class Call>
void on_threads(int size, const Call& call) {
#if defined(_OPENMP)
#pragma omp parallel num_threads(size)
  {
    bool calling = false;
#pragma omp masked
    calling = true;
    call(calling);
  }
#else
  std::vector<std::thread> others;
  for (int i = 1; i < size; ++i) others.emplace_back(call, false);
  call(true);
  for (std::thread& other : others) other.join();
#endif
}

}  // namespace

void poison(bool on) { poisoning = on; }
bool poisoned() { return poisoning; }

bool share(const Work& work, int size, const Watch& watch) {
  Shared shared{work};
  if (size > work.parts) size = static_cast<int>(work.parts);
  bool mine = false;
  if (size <= 1 || forked || !taken.compare_exchange_strong(mine, true)) {
    take_parts(shared, watch);
    return !shared.starved;
  }
  Watch quiet = watch;
  quiet.poll = nullptr;
  on_threads(size, [&](bool calling) { take_parts(shared, calling ? watch : quiet); });
  taken = false;
  return !shared.starved;
}

}  // namespace eyeline
