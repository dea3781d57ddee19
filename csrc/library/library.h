// A substitution library, compiled for matching.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "library/pattern.h"

namespace rlopt {

/// A parsed library, compiled for matching. Copies share the patterns.
class Library {
 public:
  explicit Library(std::vector<Substitution> substitutions);
  const std::vector<Substitution>& substitutions() const { return substitutions_; }
  const CompiledPattern& pattern(int substitution) const { return (*patterns_)[at(substitution)]; }
  /// A pattern line that a node of this operator can match.
  struct Role {
    int substitution;
    int line;
    int plan;  // the plan that starts with the line; -1: none
  };
  const std::vector<Role>& roles(Op op) const { return (*roles_)[at(op)]; }
  /// Whether any match depends on a tensor's number of readers.
  bool counts_uses() const { return counts_uses_; }
  /// -1 if unknown.
  int find(const std::string& name) const;
  uint64_t hash() const { return hash_; }

 private:
  std::vector<Substitution> substitutions_;
  std::shared_ptr<const std::vector<CompiledPattern>> patterns_;
  std::shared_ptr<const std::vector<std::vector<Role>>> roles_;  // by operator
  bool counts_uses_ = false;
  uint64_t hash_ = 0;
};

}  // namespace rlopt
