#include "tools/verify/instances.h"

#include <algorithm>
#include <set>

#include "match/apply.h"
#include "tools/verify/draw.h"

namespace rlopt {

namespace {

constexpr int kMaxAttempts = 20000;
constexpr int kPatience = 4000;  // a pattern with little freedom runs out of distinct instances

}  // namespace

std::vector<DrawnInstance> draw_instances(const Library& library, int substitution, int count,
                                          uint64_t seed) {
  const std::string& name = library.substitutions()[static_cast<size_t>(substitution)].name;
  Random random(hash_mix(seed, hash_string(name)));
  Drawer drawer(library, substitution, random);
  std::set<uint64_t> seen;
  std::vector<DrawnInstance> drawn;
  for (int attempt = 1; attempt <= kMaxAttempts && static_cast<int>(drawn.size()) < count; ++attempt) {
    if (attempt > kPatience && static_cast<int>(drawn.size()) * 100 < attempt) break;
    auto instance = drawer.draw();
    if (!instance || !seen.insert(instance->graph.hash()).second) continue;
    for (Match& match : find_matches(instance->graph, library, substitution)) {
      if (!apply_match(instance->graph, library, match).graph) continue;
      drawn.push_back({std::move(instance->graph), std::move(match)});
      break;
    }
  }
  return drawn;
}

}  // namespace rlopt
