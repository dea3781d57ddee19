#include "enumerate/join.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tools/verify/compare.h"
#include "tools/verify/propose.h"

namespace rlopt {

namespace {

constexpr size_t kMaxSmallest = 10;  // graphs of least size in a group that are paired with all others
constexpr double kTolerance = 1e-9;

class Joiner {
 public:
  Joiner(const World& world, const EnumerateOptions& options, const std::function<bool()>& interrupted)
      : world_(world),
        options_(options),
        interrupted_(interrupted),
        numbers_(world),
        programs_(world),
        values_(world, numbers_, programs_, options.seed) {}

  JoinResult run() {
    Enumeration found = enumerate_terms(world_, options_, interrupted_);
    result_.counts.num_graphs = found.num_graphs;
    std::vector<Term>& terms = found.terms;
    std::stable_sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) {
      return std::pair(a.fingerprint, a.num_ops) < std::pair(b.fingerprint, b.num_ops);
    });
    for (size_t first = 0, last = 0; first < terms.size(); first = last) {
      while (last < terms.size() && terms[last].fingerprint == terms[first].fingerprint) ++last;
      ++result_.counts.num_fingerprints;
      if (last - first < 2) continue;
      if (interrupted_()) break;
      join({terms.begin() + static_cast<long>(first), terms.begin() + static_cast<long>(last)});
    }
    return std::move(result_);
  }

 private:
  void join(const std::vector<Term>& terms) {
    // Use the names that give the fingerprint, and merge terms that are then equal.
    std::vector<Term> group;
    std::set<uint64_t> seen;
    for (const Term& term : terms) {
      const Term aligned = renamed(numbers_, term, numbers_.renamings()[term.lane]);
      if (seen.insert(term_hash(world_, numbers_, aligned)).second) group.push_back(aligned);
    }
    if (group.size() < 2) return;
    ++result_.counts.num_groups;
    for (size_t i = 0; i < group.size() && i < kMaxSmallest; ++i) {
      if (group[i].num_ops > group[0].num_ops) break;
      for (size_t j = i + 1; j < group.size(); ++j) {
        // Among graphs of the same size, those with a part that has another form follow from the pair of the
        // parts.
        const bool is_smaller = group[i].num_ops < group[j].num_ops;
        if (is_smaller || (group[i].is_normal && group[j].is_normal)) consider(group[j], group[i]);
      }
    }
  }

  void consider(const Term& left, const Term& right) {
    ++result_.counts.num_pairs;
    if (!seen_.insert(pair_hash(left, right)).second) {
      ++result_.counts.num_renamed;
      return;
    }
    if (has_common_part(left, right)) {
      ++result_.counts.num_common;
      return;
    }
    if (is_special_case(left, right)) {
      ++result_.counts.num_special;
      return;
    }
    ++result_.counts.num_distinct;
    const auto pair = aligned(left, right);
    if (!pair || !agrees_again(*pair)) {
      ++result_.counts.num_refuted;
      return;
    }
    result_.pairs.push_back(*pair);
  }

  /// The least over all renamings; symmetric in the two sides.
  uint64_t pair_hash(const Term& left, const Term& right) const {
    uint64_t least = ~0ULL;
    for (const auto& renaming : numbers_.renamings()) {
      const uint64_t a = term_hash(world_, numbers_, renamed(numbers_, left, renaming));
      const uint64_t b = term_hash(world_, numbers_, renamed(numbers_, right, renaming));
      least = std::min(least, hash_mix(std::min(a, b), std::max(a, b)));
    }
    return least;
  }

  /// Whether the pair still holds if some of the reads of an input are replaced by another input.
  bool is_special_case(const Term& left, const Term& right) {
    for (int input = 0; input < numbers_.num_inputs(); ++input) {
      const int other = unused_input(left, right, numbers_.sort_of(input));
      if (other < 0) continue;
      const int in_left = num_places(left, input), in_right = num_places(right, input);
      if (in_left + in_right < 3) continue;
      // The first read keeps the input.
      for (uint32_t mask = 2; mask < 1U << (in_left + in_right); mask += 2) {
        const Term a = with_places(left, input, other, mask);
        const Term b = with_places(right, input, other, mask >> in_left);
        if (num_places(a, input) == 0 || num_places(a, other) == 0) continue;
        if (output_hashes(a, values_.hashes(a)) == output_hashes(b, values_.hashes(b))) return true;
      }
    }
    return false;
  }

  int num_places(const Term& term, int input) const {
    int count = term.input == input ? 1 : 0;
    for (const TermOp& op : term.ops)
      count += static_cast<int>(std::count(op.ins.begin(), op.ins.end(), input));
    return count;
  }

  int unused_input(const Term& left, const Term& right, int sort) const {
    if (world_.sorts[static_cast<size_t>(sort)].is_constant()) return -1;
    for (int i = 0; i < numbers_.num_inputs(); ++i) {
      if (numbers_.sort_of(i) == sort && num_places(left, i) + num_places(right, i) == 0) return i;
    }
    return -1;
  }

  static Term with_places(Term term, int input, int other, uint32_t mask) {
    const auto change = [&](int8_t& in) {
      if (in != input) return;
      if ((mask & 1U) != 0) in = static_cast<int8_t>(other);
      mask >>= 1;
    };
    change(term.input);
    for (TermOp& op : term.ops) {
      for (int8_t& in : op.ins) change(in);
    }
    return term;
  }

  bool has_common_part(const Term& left, const Term& right) {
    const std::vector<uint64_t> a = values_.hashes(left), b = values_.hashes(right);
    for (int i = 0; i < left.num_ops; ++i) {
      for (int j = 0; j < right.num_ops; ++j) {
        const TermOp& p = left.ops[static_cast<size_t>(i)];
        const TermOp& q = right.ops[static_cast<size_t>(j)];
        if (p.letter != q.letter || !same_operands(p, q, a, b)) continue;
        // Both end with this operator: the pair also holds without it, for its operands.
        if (is_last(left, i) && is_last(right, j)) return true;
        // If the pair holds for any function, a smaller pair already covers it.
        if (reads_inputs(p) && reads_inputs(q) && left.num_ops + right.num_ops > 2 &&
            holds_with_fresh(left, i, right, j))
          return true;
      }
    }
    return false;
  }

  bool same_operands(const TermOp& p, const TermOp& q, const std::vector<uint64_t>& a,
                     const std::vector<uint64_t>& b) const {
    const Letter& letter = world_.letters[p.letter];
    const auto left = [&](size_t k) { return a[static_cast<size_t>(p.ins[k])]; };
    const auto right = [&](size_t k) { return b[static_cast<size_t>(q.ins[k])]; };
    if (letter.arity == 1) return left(0) == right(0);
    if (left(0) == right(0) && left(1) == right(1)) return true;
    return is_commutative(letter.op) && left(0) == right(1) && left(1) == right(0);
  }

  bool is_last(const Term& term, int op) const {
    for (const int output : term_outputs(world_, numbers_, term)) {
      if (!numbers_.is_input(output) && numbers_.op_of(output) == op) return true;
    }
    return false;
  }

  bool reads_inputs(const TermOp& op) const {
    return std::all_of(op.ins.begin(), op.ins.end(), [&](int8_t in) { return in < numbers_.num_inputs(); });
  }

  bool holds_with_fresh(const Term& left, int i, const Term& right, int j) {
    return output_hashes(left, values_.hashes(left, i, 77)) ==
           output_hashes(right, values_.hashes(right, j, 77));
  }

  std::vector<uint64_t> output_hashes(const Term& term, const std::vector<uint64_t>& hashes) const {
    std::vector<uint64_t> found;
    for (const int output : term_outputs(world_, numbers_, term))
      found.push_back(hashes[static_cast<size_t>(output)]);
    std::sort(found.begin(), found.end());
    return found;
  }

  /// Brings the outputs into the same order; nothing if the fingerprints collided by chance.
  std::optional<CandidatePair> aligned(const Term& left, const Term& right) {
    const std::vector<uint64_t> a = values_.hashes(left), b = values_.hashes(right);
    CandidatePair pair{left, right, term_outputs(world_, numbers_, left),
                       term_outputs(world_, numbers_, right)};
    if (pair.left_outputs.size() != pair.right_outputs.size()) return std::nullopt;
    const auto sorted = [](std::vector<int>& outputs, const std::vector<uint64_t>& hashes) {
      std::stable_sort(outputs.begin(), outputs.end(), [&](int x, int y) {
        return hashes[static_cast<size_t>(x)] < hashes[static_cast<size_t>(y)];
      });
    };
    sorted(pair.left_outputs, a);
    sorted(pair.right_outputs, b);
    for (size_t i = 0; i < pair.left_outputs.size(); ++i) {
      if (a[static_cast<size_t>(pair.left_outputs[i])] != b[static_cast<size_t>(pair.right_outputs[i])])
        return std::nullopt;
    }
    return pair;
  }

  bool agrees_again(const CandidatePair& pair) const {
    for (int trial = 0; trial < world_.num_trials; ++trial) {
      try {
        const std::vector<Ints> shapes = trial_shapes(world_, trial);
        const Graph before = term_graph(world_, numbers_, pair.left, pair.left_outputs, shapes);
        const Graph after = term_graph(world_, numbers_, pair.right, pair.right_outputs, shapes);
        if (!find_difference(before, after, options_.seed).empty()) return false;
      } catch (const TypeError&) {
        return false;
      }
    }
    return true;
  }

  const World& world_;
  const EnumerateOptions& options_;
  const std::function<bool()>& interrupted_;
  ValueNumbers numbers_;
  Programs programs_;
  TermValues values_;
  std::set<uint64_t> seen_;
  JoinResult result_;
};

}  // namespace

JoinResult find_pairs(const World& world, const EnumerateOptions& options,
                      const std::function<bool()>& interrupted) {
  return Joiner(world, options, interrupted).run();
}

std::string find_difference(const Graph& before, const Graph& after, uint64_t seed) {
  if (before.outputs().size() != after.outputs().size()) return "the numbers of outputs differ";
  for (size_t i = 0; i < before.outputs().size(); ++i) {
    if (before.type(before.outputs()[i]) != after.type(after.outputs()[i])) return "the types differ";
  }
  const Comparison exact = compare(before, after, seed, 1, false);
  if (!exact.difference.empty()) return exact.difference;
  Random random(seed + 1);
  std::unordered_map<NodeId, RefTensor> data;
  for (const NodeId id : before.inputs()) {
    RefTensor& tensor = data[id];
    int64_t size = 1;
    for (const Dim& dim : before.node(id).types->front().dims) {
      tensor.dims.push_back(dim.value());
      size *= dim.value();
    }
    for (int64_t i = 0; i < size; ++i)
      tensor.doubles.push_back(static_cast<double>(random.between(-1000, 1000)) / 500.0);
  }
  const auto a = evaluate(before, data, Arithmetic::Float64);
  const auto b = evaluate(after, data, Arithmetic::Float64);
  for (size_t i = 0; i < a.size(); ++i) {
    double scale = 1;
    for (const double x : a[i].doubles) scale = std::max(scale, std::fabs(x));
    for (size_t k = 0; k < a[i].doubles.size(); ++k) {
      if (!(std::fabs(a[i].doubles[k] - b[i].doubles[k]) <= kTolerance * scale)) {
        return "output " + before.output_names()[i] + " differs in float64";
      }
    }
  }
  return "";
}

}  // namespace rlopt
