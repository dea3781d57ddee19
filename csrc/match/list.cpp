#include "match/list.h"

#include <algorithm>

namespace rlopt {

bool precedes(const Match& a, const Match& b) {
  if (a.nodes != b.nodes) return a.nodes < b.nodes;
  if (a.binding.tensors != b.binding.tensors) return a.binding.tensors < b.binding.tensors;
  return a.binding.family_tensors < b.binding.family_tensors;
}

const Located& MatchList::operator[](size_t location) const {
  size_t chunk = 0;
  for (; location >= chunks_[chunk]->size(); ++chunk) location -= chunks_[chunk]->size();
  return (*chunks_[chunk])[location];
}

/// The position of the match, or where it would be inserted.
MatchList::Place MatchList::place(const Match& match) const {
  if (chunks_.empty()) return {0, 0, false};
  auto chunk = std::partition_point(chunks_.begin(), chunks_.end(), [&](const Shared<Chunk>& each) {
    return precedes(*each->back().match, match);
  });
  if (chunk == chunks_.end()) --chunk;
  const auto entry = std::partition_point((*chunk)->begin(), (*chunk)->end(),
                                          [&](const Located& each) { return precedes(*each.match, match); });
  const bool is_found = entry != (*chunk)->end() && !precedes(match, *entry->match);
  return {static_cast<size_t>(chunk - chunks_.begin()), static_cast<size_t>(entry - (*chunk)->begin()),
          is_found};
}

std::optional<size_t> MatchList::find(const Match& match) const {
  const Place found = place(match);
  if (!found.is_found) return std::nullopt;
  size_t location = found.index;
  for (size_t i = 0; i < found.chunk; ++i) location += chunks_[i]->size();
  return location;
}

const Located* MatchList::look_up(const Match& match) const {
  const Place found = place(match);
  return found.is_found ? &(*chunks_[found.chunk])[found.index] : nullptr;
}

bool MatchList::insert(MatchPtr match) {
  const Place found = place(*match);
  if (found.is_found) return false;
  if (chunks_.empty()) chunks_.emplace_back(Chunk{});
  Chunk& chunk = chunks_[found.chunk].writable();
  chunk.insert(chunk.begin() + static_cast<long>(found.index), Located{std::move(match), nullptr});
  ++size_;
  if (chunk.size() > kMaxChunk) {
    const auto middle = chunk.begin() + static_cast<long>(chunk.size() / 2);
    Chunk upper(std::make_move_iterator(middle), std::make_move_iterator(chunk.end()));
    chunk.erase(middle, chunk.end());
    chunks_.insert(chunks_.begin() + static_cast<long>(found.chunk) + 1, Shared<Chunk>(std::move(upper)));
  }
  return true;
}

MatchPtr MatchList::erase(const Match& match) {
  const Place found = place(match);
  if (!found.is_found) return nullptr;
  Chunk& chunk = chunks_[found.chunk].writable();
  const auto entry = chunk.begin() + static_cast<long>(found.index);
  MatchPtr erased = std::move(entry->match);
  chunk.erase(entry);
  --size_;
  if (chunk.empty()) chunks_.erase(chunks_.begin() + static_cast<long>(found.chunk));
  return erased;
}

std::optional<size_t> MatchList::find_nodes(const std::vector<NodeId>& nodes) const {
  size_t location = 0;
  for (const auto& chunk : chunks_) {
    if (chunk->back().match->nodes < nodes) {
      location += chunk->size();
      continue;
    }
    const auto entry = std::partition_point(chunk->begin(), chunk->end(),
                                            [&](const Located& each) { return each.match->nodes < nodes; });
    if (entry->match->nodes != nodes) return std::nullopt;
    return location + static_cast<size_t>(entry - chunk->begin());
  }
  return std::nullopt;
}

MatchPtr MatchList::set_evaluation(const Match& match, std::shared_ptr<const Evaluation> evaluation) {
  const Place found = place(match);
  if (!found.is_found) return nullptr;
  if ((*chunks_[found.chunk])[found.index].evaluation != evaluation) {
    chunks_[found.chunk].writable()[found.index].evaluation = std::move(evaluation);
  }
  return (*chunks_[found.chunk])[found.index].match;
}

}  // namespace rlopt
