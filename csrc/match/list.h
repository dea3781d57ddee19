// The matches of one substitution in canonical order, in copy-on-write chunks.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "match/match.h"

namespace rlopt {

struct Evaluation;  // the result of applying a match: search/state.h

using MatchPtr = std::shared_ptr<const Match>;

/// Canonical order and equality of matches of one substitution.
bool precedes(const Match& a, const Match& b);

struct Located {
  MatchPtr match;
  std::shared_ptr<const Evaluation> evaluation;  // null if unknown or stale
};

class MatchList {
 public:
  size_t size() const { return size_; }
  const Located& operator[](size_t location) const;
  std::optional<size_t> find(const Match& match) const;
  /// Null if there is no equal match.
  const Located* look_up(const Match& match) const;
  /// Returns true if inserted; does nothing if an equal match exists.
  bool insert(MatchPtr match);
  /// Null if there is no equal match.
  MatchPtr erase(const Match& match);
  /// The first match with these nodes, whatever it binds.
  std::optional<size_t> find_nodes(const std::vector<NodeId>& nodes) const;
  /// Returns the equal match of the list; null if there is none.
  MatchPtr set_evaluation(const Match& match, std::shared_ptr<const Evaluation> evaluation);
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& chunk : chunks_) {
      for (const Located& located : *chunk) visit(located);
    }
  }

 private:
  static constexpr size_t kMaxChunk = 64;
  using Chunk = std::vector<Located>;
  struct Place {
    size_t chunk;
    size_t index;
    bool is_found;
  };
  Place place(const Match& match) const;

  std::vector<Shared<Chunk>> chunks_;  // none is empty
  size_t size_ = 0;
};

}  // namespace rlopt
