// Which of the tables that were compiled this processor can run: asked of the processor, at run time.
#include "table.h"

#include <cstring>

extern "C" {
extern const eyeline::Table eyeline_table_neon, eyeline_table_avx512_bf16, eyeline_table_avx512,
    eyeline_table_avx2, eyeline_table_scalar;
}

namespace eyeline {

namespace {

struct Found {
  const Table* all[5];
  int count = 0;

  Found() {
#if defined(EYELINE_WITH_neon)
    add(true, eyeline_table_neon);  // every processor of this kind has it
#endif
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
#if defined(EYELINE_WITH_avx512_bf16)
    add(avx512() && __builtin_cpu_supports("avx512bf16"), eyeline_table_avx512_bf16);
#endif
#if defined(EYELINE_WITH_avx512)
    add(avx512(), eyeline_table_avx512);
#endif
#if defined(EYELINE_WITH_avx2)
    add(avx2(), eyeline_table_avx2);
#endif
    add(true, eyeline_table_scalar);
  }

  void add(bool runs, const Table& table) {
    if (runs) all[count++] = &table;
  }

#if defined(__x86_64__)
  static bool avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
  }

  static bool avx512() {
    return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
};

}  // namespace

const Table* const* tables(int* count) {
  static const Found found;
  *count = found.count;
  return found.all;
}

const Table* table(const char* name) {
  int count = 0;
  const Table* const* all = tables(&count);
  for (int i = 0; i < count; ++i)
    if (std::strcmp(all[i]->name, name) == 0) return all[i];
  return nullptr;
}

}  // namespace eyeline
