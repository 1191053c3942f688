// Which tables this processor can run: asked of the processor, at run time.
#include "table.h"

#include <cstring>

extern "C" {
extern const eyeline::Table eyeline_table_scalar;
#if defined(__aarch64__)
extern const eyeline::Table eyeline_table_neon;
#elif defined(__x86_64__)
extern const eyeline::Table eyeline_table_avx2;
extern const eyeline::Table eyeline_table_avx512;
extern const eyeline::Table eyeline_table_avx512_bf16;
#endif
}

namespace eyeline {

namespace {

struct Found {
  const Table* all[5];
  int count = 0;

  Found() {
#if defined(__aarch64__)
    all[count++] = &eyeline_table_neon;  // every processor of this kind has it
#elif defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16"))
      all[count++] = &eyeline_table_avx512_bf16;
    if (avx512) all[count++] = &eyeline_table_avx512;
    if (avx2) all[count++] = &eyeline_table_avx2;
#endif
    all[count++] = &eyeline_table_scalar;
  }
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
