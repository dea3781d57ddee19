// Memory for what lives at different times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace rlopt::kernels {

/// Blocks of the arena begin at cache lines, in floats.
constexpr int64_t kLineOfArena = 16;

/// Hands out parts of the arena, the lowest that is free.
class Arena {
 public:
  int64_t take(int64_t size) {
    // What is empty takes a line too: no two blocks begin at the same place.
    size = (std::max<int64_t>(size, 1) + kLineOfArena - 1) / kLineOfArena * kLineOfArena;
    int64_t at = kLineOfArena;
    for (const auto& [begin, end] : taken_) {
      if (begin - at >= size) break;
      at = end;
    }
    taken_[at] = at + size;
    most_ = std::max(most_, at + size);
    return at;
  }
  void give_back(int64_t at) { taken_.erase(at); }
  int64_t most() const { return most_ + kLineOfArena; }

 private:
  std::map<int64_t, int64_t> taken_;  // from where to where
  int64_t most_ = 0;
};

}  // namespace rlopt::kernels
