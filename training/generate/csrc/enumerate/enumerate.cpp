#include "enumerate/enumerate.h"

#include <algorithm>

#include "tools/reference/algebra.h"

namespace rlopt {

namespace {

class Enumerator {
 public:
  Enumerator(const World& world, const EnumerateOptions& options, const std::function<bool()>& interrupted)
      : world_(world),
        options_(options),
        interrupted_(interrupted),
        numbers_(world),
        programs_(world),
        num_lanes_(numbers_.renamings().size()),
        used_(world.sorts.size(), 0) {
    values_.resize(static_cast<size_t>(numbers_.output(kMaxTermOps, 0)));
    for (int i = 0; i < numbers_.num_inputs(); ++i) {
      const InputSort& sort = world.sorts[static_cast<size_t>(numbers_.sort_of(i))];
      Tensor& value = values_[static_cast<size_t>(i)];
      value.shape = sort.shapes[0];
      value.is_constant = sort.is_constant();
      value.data = input_lanes(world, numbers_, i, num_lanes_, options.seed);
      value.hashes = tensor_hashes(value.shape, value.data, num_lanes_);
    }
  }

  Enumeration run() {
    add_inputs();
    for (target_ = 1; target_ <= options_.depth && !stopped_; ++target_) {
      term_ = {};
      extend(0);
      for (const auto& [fingerprint, known] : found_) smallest_.try_emplace(fingerprint, known);
      found_.clear();
    }
    return std::move(result_);
  }

 private:
  struct Tensor {
    Ints shape;
    Lanes data;
    std::vector<uint64_t> hashes;
    uint32_t ops = 0;  // bit mask of the operators it depends on
    int num_reads = 0;
    bool is_constant = false;
  };

  struct Known {
    int num_ops = 0;
    uint64_t hash = 0;  // `least_hash`
  };

  Tensor& value(int number) { return values_[static_cast<size_t>(number)]; }

  void add_inputs() {
    for (int i = 0; i < numbers_.num_inputs(); ++i) {
      if (value(i).is_constant || numbers_.position(i) > 0) continue;
      Term term;
      term.input = static_cast<int8_t>(i);
      fingerprint(term, {i});
      smallest_.try_emplace(term.fingerprint, Known{});
      keep(term);
    }
  }

  void keep(const Term& term) {
    ++result_.num_graphs;
    const auto slices = static_cast<uint64_t>(options_.num_slices);
    if (term.fingerprint % slices == static_cast<uint64_t>(options_.slice)) result_.terms.push_back(term);
  }

  void fingerprint(Term& term, const std::vector<int>& outputs) {
    for (size_t lane = 0; lane < num_lanes_; ++lane) {
      uint64_t sum = outputs.size();
      for (const int output : outputs) sum += hash_mix(7, value(output).hashes[lane]);
      if (lane == 0 || sum < term.fingerprint) {
        term.fingerprint = sum;
        term.lane = static_cast<uint8_t>(lane);
      }
    }
  }

  bool is_usable(int number, int op) {
    if (!numbers_.is_input(number)) return numbers_.op_of(number) < op && !value(number).data.empty();
    if (value(number).is_constant) {
      const InputSort& sort = world_.sorts[static_cast<size_t>(numbers_.sort_of(number))];
      return target_ <= kShallow || !sort.is_shallow;
    }
    return numbers_.position(number) <= used_[static_cast<size_t>(numbers_.sort_of(number))];
  }

  /// Marks a read; true if the input was not read before.
  bool read(int number) {
    ++value(number).num_reads;
    if (!numbers_.is_input(number) || value(number).is_constant) return false;
    int& used = used_[static_cast<size_t>(numbers_.sort_of(number))];
    const bool is_fresh = numbers_.position(number) == used;
    used += is_fresh ? 1 : 0;
    return is_fresh;
  }
  void unread(int number, bool was_fresh) {
    --value(number).num_reads;
    if (was_fresh) --used_[static_cast<size_t>(numbers_.sort_of(number))];
  }

  void extend(int op) {
    const int end = numbers_.output(op, 0);
    for (size_t l = 0; l < world_.letters.size() && !stopped_; ++l) {
      const Letter& letter = world_.letters[l];
      if (letter.is_shallow && target_ > kShallow) continue;
      for (int a = 0; a < end; ++a) {
        if (!is_usable(a, op)) continue;
        const bool is_fresh = read(a);
        if (letter.arity == 1) {
          if (!value(a).is_constant) place(op, static_cast<int>(l), {static_cast<int8_t>(a), -1});
        } else {
          for (int b = is_commutative(letter.op) ? a : 0; b < end; ++b) {
            // The same tensor twice is rarely interesting, except for a square.
            if (a == b && letter.op != Op::Mul) continue;
            if (!is_usable(b, op) || (value(a).is_constant && value(b).is_constant)) continue;
            const bool is_second_fresh = read(b);
            place(op, static_cast<int>(l), {static_cast<int8_t>(a), static_cast<int8_t>(b)});
            unread(b, is_second_fresh);
          }
        }
        unread(a, is_fresh);
      }
    }
  }

  /// Adjacent independent operators are enumerated in one order only.
  bool is_in_order(int op, const TermOp& next) const {
    if (op == 0) return true;
    const TermOp& last = term_.ops[static_cast<size_t>(op - 1)];
    for (const int8_t in : next.ins) {
      if (in >= 0 && !numbers_.is_input(in) && numbers_.op_of(in) == op - 1) return true;
    }
    return last < next;
  }

  void place(int op, int letter_number, std::array<int8_t, 2> ins) {
    const TermOp next{static_cast<uint8_t>(letter_number), ins};
    if (stopped_ || !is_in_order(op, next)) return;
    if (++num_placed_ % 256 == 0 && interrupted_()) stopped_ = true;
    const Letter& letter = world_.letters[static_cast<size_t>(letter_number)];
    std::vector<Ints> shapes;
    std::vector<const Lanes*> data;
    uint32_t ops = 1U << op;
    for (int k = 0; k < letter.arity; ++k) {
      const Tensor& in = value(ins[static_cast<size_t>(k)]);
      shapes.push_back(in.shape);
      data.push_back(&in.data);
      ops |= in.ops;
    }
    const Program* program = programs_.find(letter_number, shapes);
    if (program == nullptr) return;
    std::vector<Lanes> results = run_program(*program, data, static_cast<int>(num_lanes_));
    for (int k = 0; k < letter.num_outputs; ++k) {
      Tensor& out = value(numbers_.output(op, k));
      out.shape = program->shapes[static_cast<size_t>(k)];
      out.data = std::move(results[static_cast<size_t>(k)]);
      out.hashes = tensor_hashes(out.shape, out.data, num_lanes_);
      out.ops = ops;
      out.num_reads = 0;
    }
    const bool was_normal = term_.is_normal;
    term_.ops[static_cast<size_t>(op)] = next;
    term_.num_ops = static_cast<uint8_t>(op + 1);
    if (op + 1 == target_) {
      record();
    } else if (is_worth_extending(op)) {
      extend(op + 1);
    }
    for (int k = 0; k < letter.num_outputs; ++k) value(numbers_.output(op, k)).data.clear();
    term_.is_normal = was_normal;
    term_.ops[static_cast<size_t>(op)] = {};
    term_.num_ops = static_cast<uint8_t>(op);
  }

  std::vector<int> outputs() {
    std::vector<int> found;
    for (int i = numbers_.num_inputs(); i < numbers_.output(term_.num_ops, 0); ++i) {
      if (!value(i).data.empty() && value(i).num_reads == 0) found.push_back(i);
    }
    return found;
  }

  void record() {
    const std::vector<int> found = outputs();
    if (static_cast<int>(found.size()) > options_.max_outputs || !is_connected()) return;
    fingerprint(term_, found);
    for (const int output : found) {
      if (is_constant(output)) return;
    }
    if (found.size() == 1 && target_ < options_.depth && !found_.contains(term_.fingerprint)) {
      found_[term_.fingerprint] = {term_.num_ops, least_hash(term_)};
    }
    keep(term_);
  }

  /// Whether shared tensors connect all operators; constants do not count.
  bool is_connected() {
    std::array<uint64_t, kMaxTermOps> reach{};
    for (int i = 0; i < term_.num_ops; ++i) {
      uint64_t& mine = reach[static_cast<size_t>(i)];
      mine = 3ULL << numbers_.output(i, 0);
      for (const int8_t in : term_.ops[static_cast<size_t>(i)].ins) {
        if (in >= 0 && !value(in).is_constant) mine |= 1ULL << in;
      }
    }
    uint64_t all = reach[0];
    for (int round = 0; round < term_.num_ops; ++round) {
      for (int i = 0; i < term_.num_ops; ++i) {
        if ((all & reach[static_cast<size_t>(i)]) != 0) all |= reach[static_cast<size_t>(i)];
      }
    }
    for (int i = 0; i < term_.num_ops; ++i) {
      if ((all & reach[static_cast<size_t>(i)]) == 0) return false;
    }
    return true;
  }

  /// A hash that does not depend on the names of the inputs.
  uint64_t least_hash(const Term& term) const {
    uint64_t least = ~0ULL;
    for (const auto& renaming : numbers_.renamings()) {
      least = std::min(least, term_hash(world_, numbers_, renamed(numbers_, term, renaming)));
    }
    return least;
  }

  /// Whether all elements are one number: a zero, or a sum of ones. Identities about those are useless.
  bool is_constant(int number) {
    const Tensor& tensor = value(number);
    if (tensor.data.size() <= num_lanes_) return false;
    for (size_t i = num_lanes_; i < tensor.data.size(); i += num_lanes_) {
      if (tensor.data[i] != tensor.data[0]) return false;
    }
    return true;
  }

  /// Also updates whether the term so far is normal.
  bool is_worth_extending(int op) {
    const int remaining = target_ - op - 1;
    if (static_cast<int>(outputs().size()) > options_.max_outputs + remaining) return false;
    const Letter& letter = world_.letters[term_.ops[static_cast<size_t>(op)].letter];
    for (int k = 0; k < letter.num_outputs; ++k) {
      const int mine = numbers_.output(op, k);
      if (is_constant(mine)) return false;
      for (int other = 0; other < mine; ++other) {
        if (!value(other).data.empty() && value(other).hashes[0] == value(mine).hashes[0]) return false;
      }
      Term alone;
      fingerprint(alone, {mine});
      const uint32_t ops = value(mine).ops;
      const auto it = smallest_.find(alone.fingerprint);
      if (it == smallest_.end()) continue;
      if (it->second.num_ops < __builtin_popcount(ops)) return false;
      if (__builtin_popcount(ops) > 1) {
        term_.is_normal &= it->second.hash == least_hash(part_of_term(world_, numbers_, term_, ops));
      }
    }
    return true;
  }

  const World& world_;
  const EnumerateOptions& options_;
  const std::function<bool()>& interrupted_;
  ValueNumbers numbers_;
  Programs programs_;
  size_t num_lanes_;
  std::vector<int> used_;  // of each sort
  std::vector<Tensor> values_;
  Term term_;
  int target_ = 0;                                // operators of the terms recorded now
  std::unordered_map<uint64_t, Known> smallest_;  // by fingerprint of one tensor: the first of least size
  std::unordered_map<uint64_t, Known> found_;
  Enumeration result_;
  int64_t num_placed_ = 0;
  bool stopped_ = false;
};

}  // namespace

Enumeration enumerate_terms(const World& world, const EnumerateOptions& options,
                            const std::function<bool()>& interrupted) {
  if (options.depth < 1 || options.depth > kMaxTermOps)
    throw Error("depth: expected 1 to " + std::to_string(kMaxTermOps) + " operators, got " +
                std::to_string(options.depth));
  if (options.num_slices < 1 || options.slice < 0 || options.slice >= options.num_slices)
    throw IndexError("no slice " + std::to_string(options.slice) + " of " +
                     std::to_string(options.num_slices));
  return Enumerator(world, options, interrupted).run();
}

Lanes input_lanes(const World& world, const ValueNumbers& numbers, int input, size_t num_lanes,
                  uint64_t seed) {
  const InputSort& sort = world.sorts[static_cast<size_t>(numbers.sort_of(input))];
  int64_t size = 1;
  for (const int64_t dim : sort.shapes[0]) size *= dim;
  Lanes lanes;
  for (int64_t i = 0; i < size; ++i) {
    for (size_t lane = 0; lane < num_lanes; ++lane) {
      if (sort.is_constant()) {
        const double number = sort.values(sort.shapes[0])[static_cast<size_t>(i)];
        // 1/9 of the averaging kernel is the inverse in the field, not the nearest double.
        lanes.push_back(static_cast<uint32_t>(
            number > 0 && number < 1 ? FieldAlgebra::inverse(static_cast<int64_t>(1 / number + 0.5))
                                     : FieldAlgebra::from_double(number)));
        continue;
      }
      const auto stands_for = static_cast<uint64_t>(numbers.renamings()[lane][static_cast<size_t>(input)]);
      const uint64_t bits = hash_mix(hash_mix(seed + 1, stands_for), static_cast<uint64_t>(i));
      lanes.push_back(static_cast<uint32_t>(bits % static_cast<uint64_t>(FieldAlgebra::kPrime)));
    }
  }
  return lanes;
}

std::vector<uint64_t> tensor_hashes(const Ints& shape, const Lanes& data, size_t num_lanes) {
  std::vector<uint64_t> low(num_lanes, 0), high(num_lanes, 0);
  const size_t size = data.size() / num_lanes;
  for (size_t i = 0; i < size; ++i) {
    const uint64_t key = hash_mix(31, i);
    const uint64_t first = key & 0xffffffffULL, second = key >> 32;
    const uint32_t* element = data.data() + i * num_lanes;
    for (size_t lane = 0; lane < num_lanes; ++lane) {
      low[lane] += first * element[lane];
      high[lane] += second * element[lane];
    }
  }
  uint64_t shape_hash = shape.size();
  for (const int64_t dim : shape) shape_hash = hash_mix(shape_hash, static_cast<uint64_t>(dim));
  for (size_t lane = 0; lane < num_lanes; ++lane) {
    low[lane] = hash_mix(hash_mix(shape_hash, low[lane]), high[lane]);
  }
  return low;
}

TermValues::TermValues(const World& world, const ValueNumbers& numbers, Programs& programs, uint64_t seed)
    : world_(world), numbers_(numbers), programs_(programs), seed_(seed) {}

std::vector<uint64_t> TermValues::hashes(const Term& term, int replaced, uint64_t fresh) {
  std::vector<Lanes> data(static_cast<size_t>(numbers_.output(kMaxTermOps, 0)));
  std::vector<Ints> shapes(data.size());
  std::vector<uint64_t> hashes(data.size(), 0);
  const auto store = [&](int number, const Ints& shape, Lanes lanes) {
    const auto at = static_cast<size_t>(number);
    shapes[at] = shape;
    data[at] = std::move(lanes);
    hashes[at] = tensor_hashes(shape, data[at], 1)[0];
  };
  for (int i = 0; i < numbers_.num_inputs(); ++i) {
    store(i, world_.sorts[static_cast<size_t>(numbers_.sort_of(i))].shapes[0],
          input_lanes(world_, numbers_, i, 1, seed_));
  }
  for (int i = 0; i < term.num_ops; ++i) {
    const TermOp& op = term.ops[static_cast<size_t>(i)];
    const Letter& letter = world_.letters[op.letter];
    std::vector<Ints> in_shapes;
    std::vector<const Lanes*> ins;
    for (int k = 0; k < letter.arity; ++k) {
      const auto at = static_cast<size_t>(op.ins[static_cast<size_t>(k)]);
      in_shapes.push_back(shapes[at]);
      ins.push_back(&data[at]);
    }
    const Program* program = programs_.find(op.letter, in_shapes);
    if (program == nullptr) throw Error(letter.name + " does not apply in a term");
    std::vector<Lanes> results = run_program(*program, ins, 1);
    for (int k = 0; k < letter.num_outputs; ++k) {
      Lanes& result = results[static_cast<size_t>(k)];
      if (i == replaced) {
        for (size_t e = 0; e < result.size(); ++e) {
          const uint64_t bits = hash_mix(hash_mix(fresh, static_cast<uint64_t>(k)), e);
          result[e] = static_cast<uint32_t>(bits % static_cast<uint64_t>(FieldAlgebra::kPrime));
        }
      }
      store(numbers_.output(i, k), program->shapes[static_cast<size_t>(k)], std::move(result));
    }
  }
  return hashes;
}

}  // namespace rlopt
