#include "library/library.h"

#include <algorithm>

namespace rlopt {

Library::Library(std::vector<Substitution> substitutions) : substitutions_(std::move(substitutions)) {
  auto patterns = std::make_shared<std::vector<CompiledPattern>>();
  for (const Substitution& each : substitutions_) patterns->push_back(compile_pattern(each));
  auto roles = std::make_shared<std::vector<std::vector<Role>>>(at(kNumOps));
  for (int i = 0; i < static_cast<int>(patterns->size()); ++i) {
    const CompiledPattern& pattern = (*patterns)[at(i)];
    counts_uses_ |= pattern.counts_uses;
    for (int line = 0; line < static_cast<int>(pattern.lines.size()); ++line) {
      const auto plan = std::find_if(pattern.plans.begin(), pattern.plans.end(),
                                     [&](const PatternPlan& each) { return each.start == line; });
      const Role role{i, line,
                      plan == pattern.plans.end() ? -1 : static_cast<int>(plan - pattern.plans.begin())};
      (*roles)[at(pattern.lines[at(line)].op)].push_back(role);
      if (pattern.lines[at(line)].is_sum) (*roles)[at(Op::Add)].push_back(role);
    }
  }
  roles_ = std::move(roles);
  patterns_ = std::move(patterns);
  hash_ = library_hash(substitutions_);
}

int Library::find(const std::string& name) const {
  for (size_t i = 0; i < substitutions_.size(); ++i) {
    if (substitutions_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace rlopt
