#include "caches.h"

#include <cstdlib>
#include <fstream>
#include <string>

namespace eyeline {

namespace {

// Linux lists the caches of a core as files. (sysconf asks the processor itself, which is wrong in
// some virtual machines, and knows nothing on ARM.)
Caches listed() {
  Caches found;
  int64_t* const levels[] = {&found.level1, &found.level2, &found.level3};
  for (int index = 0;; ++index) {
    const std::string path =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    int level = 0;
    std::string type, size;
    std::ifstream(path + "level") >> level;
    std::ifstream(path + "type") >> type;
    std::ifstream(path + "size") >> size;
    if (level == 0) return found;
    if (level > 3 || type == "Instruction" || size.empty()) continue;
    const int64_t unit = size.back() == 'K' ? 1 << 10 : size.back() == 'M' ? 1 << 20 : 1;
    const int64_t bytes = std::strtoll(size.c_str(), nullptr, 10) * unit;
    if (bytes > 0) *levels[level - 1] = bytes;
  }
}

}  // namespace

const Caches& caches() {
  static const Caches found = listed();
  return found;
}

}  // namespace eyeline
