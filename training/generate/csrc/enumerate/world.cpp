// The worlds, and terms as graphs.
#include "enumerate/world.h"

#include <algorithm>
#include <map>

#include "infer/infer.h"

namespace rlopt {

namespace {

using Form = Letter::Form;
using Given = std::vector<std::pair<std::string, AttrValue>>;

Letter plain(const std::string& name, Op op, int arity, Given attrs = {}) {
  return {name, op, Form::Plain, 0, std::move(attrs), arity, 1};
}
Letter elementwise(const std::string& name, Op op) { return {name, op, Form::Elementwise, 0, {}, 2, 1}; }
Letter with_axis(const std::string& name, Op op, int64_t axis) {
  return plain(name + std::to_string(axis), op, 2, {{"axis", axis}});
}
Letter sum_of(const std::string& name, const Ints& axes) {
  return plain(name, Op::ReduceSum, 1, {{"axes", axes}, {"keepdims", int64_t{1}}});
}
Letter half(const std::string& name, Op op, int64_t axis) {
  return {name + std::to_string(axis), op, Form::Half, axis, {}, 1, op == Op::Split ? 2 : 1};
}
Letter conv(const std::string& name, int64_t stride, int64_t group) {
  return {name, Op::Conv, Form::SameConv, 0, {{"strides", Ints{stride, stride}}, {"group", group}}, 2, 1};
}
Letter pool(const std::string& name, int64_t stride) {
  Letter letter = plain(name, Op::AveragePool, 1,
                        {{"kernel_shape", Ints{3, 3}},
                         {"strides", Ints{stride, stride}},
                         {"pads", Ints{1, 1, 1, 1}},
                         {"count_include_pad", int64_t{1}}});
  letter.form = Form::Image;
  return letter;
}
InputSort number(const std::string& name, double value) {
  return {name, 1, {{}, {}}, InputSort::Fill::Number, value, true};
}

void add_arithmetic(World& world) {
  world.letters.push_back(elementwise("add", Op::Add));
  world.letters.push_back(elementwise("sub", Op::Sub));
  world.letters.push_back(elementwise("mul", Op::Mul));
  // Stands for any elementwise function: over the field it is a hash.
  world.letters.push_back(plain("f", Op::Tanh, 1));
}

/// Matrices: products, sums, scales, transposes, blocks.
World matrix_world() {
  World world;
  world.name = "matrix";
  world.num_trials = 2;
  world.sorts = {{"a", 4, {{4, 4}, {6, 6}}},
                 {"s", 1, {{1}, {1}}},
                 number("one", 1),
                 {"eye", 1, {{4, 4}, {6, 6}}, InputSort::Fill::Identity, 0}};
  world.letters.push_back(plain("matmul", Op::MatMul, 2));
  add_arithmetic(world);
  for (const int64_t axis : {0, 1}) {
    world.letters.push_back(with_axis("concat", Op::Concat, axis));
    world.letters.push_back(half("split", Op::Split, axis));
    world.letters.push_back(half("slice", Op::Slice, axis));
    world.letters.push_back(sum_of("sum" + std::to_string(axis), {axis}));
  }
  world.letters.push_back(plain("transpose", Op::Transpose, 1, {{"perm", Ints{1, 0}}}));
  world.letters.push_back(plain("neg", Op::Neg, 1));
  world.letters.back().is_shallow = true;
  return world;
}

/// Activations of rank 3: permutations of axes, blocks, reductions, reshapes, batched products.
World tensor_world() {
  World world;
  world.name = "tensor";
  world.num_trials = 2;
  world.sorts = {{"x", 3, {{4, 4, 4}, {2, 2, 2}}}, {"w", 2, {{4, 4}, {2, 2}}}};
  world.letters.push_back(plain("matmul", Op::MatMul, 2));
  world.letters.push_back(elementwise("add", Op::Add));
  world.letters.push_back(elementwise("mul", Op::Mul));
  world.letters.push_back(plain("f", Op::Tanh, 1));
  for (const int64_t axis : {0, 1, 2}) {
    world.letters.push_back(with_axis("concat", Op::Concat, axis));
    world.letters.push_back(half("split", Op::Split, axis));
    world.letters.push_back(half("slice", Op::Slice, axis));
    world.letters.push_back(sum_of("sum" + std::to_string(axis), {axis}));
  }
  for (const Ints& perm : {Ints{0, 2, 1}, Ints{1, 0, 2}, Ints{1, 2, 0}, Ints{2, 0, 1}}) {
    const std::string name = std::to_string(perm[0]) + std::to_string(perm[1]) + std::to_string(perm[2]);
    world.letters.push_back(plain("transpose" + name, Op::Transpose, 1, {{"perm", perm}}));
  }
  world.letters.push_back({"merge01", Op::Reshape, Form::MergeAxes, 0, {}, 1, 1});
  world.letters.push_back({"merge12", Op::Reshape, Form::MergeAxes, 1, {}, 1, 1});
  world.letters.push_back({"unmerge0", Op::Reshape, Form::SplitAxis, 0, {}, 1, 1});
  return world;
}

/// Images and kernels.
World image_world() {
  World world;
  world.name = "image";
  world.num_trials = 2;
  world.max_elements = 144;
  world.sorts = {{"x", 2, {{1, 2, 4, 4}, {2, 4, 8, 8}}},
                 {"w", 2, {{2, 2, 3, 3}, {4, 4, 3, 3}}},
                 {"p", 2, {{2, 2, 1, 1}, {4, 4, 1, 1}}},
                 {"g", 2, {{2, 1, 3, 3}, {4, 2, 3, 3}}},
                 {"r", 1, {{2, 2, 1, 3}, {4, 4, 1, 3}}},
                 {"s", 1, {{1}, {1}}},
                 {"unit", 1, {{2, 2, 1, 1}, {4, 4, 1, 1}}, InputSort::Fill::Identity, 0},
                 {"mean", 1, {{2, 1, 3, 3}, {4, 2, 3, 3}}, InputSort::Fill::Mean, 0}};
  add_arithmetic(world);
  world.letters.push_back(conv("conv", 1, 1));
  world.letters.push_back(conv("conv_stride", 2, 1));
  world.letters.push_back(conv("conv_group", 1, 2));
  world.letters.push_back(pool("pool", 1));
  world.letters.push_back(pool("pool_stride", 2));
  for (const int64_t axis : {0, 1}) {
    world.letters.push_back(with_axis("concat", Op::Concat, axis));
    world.letters.push_back(half("split", Op::Split, axis));
    world.letters.push_back(half("slice", Op::Slice, axis));
  }
  world.letters.push_back(sum_of("sum_pixels", {2, 3}));
  world.letters.push_back({"enlarge", Op::Pad, Form::EnlargeKernel, 0, {}, 1, 1});
  return world;
}

const std::vector<World>& worlds() {
  static const std::vector<World> all{matrix_world(), tensor_world(), image_world()};
  return all;
}

bool is_image(const Ints& shape) { return shape.size() == 4 && shape[2] % 2 == 0 && shape[3] % 2 == 0; }

void add_renamings(const World& world, size_t sort, std::vector<int> so_far,
                   std::vector<std::vector<int>>& all) {
  if (sort == world.sorts.size()) {
    all.push_back(std::move(so_far));
    return;
  }
  const auto first = static_cast<int>(so_far.size());
  std::vector<int> order;
  for (int i = 0; i < world.sorts[sort].count; ++i) order.push_back(first + i);
  do {
    std::vector<int> next = so_far;
    next.insert(next.end(), order.begin(), order.end());
    add_renamings(world, sort + 1, std::move(next), all);
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace

const World& find_world(const std::string& name) {
  for (const World& world : worlds()) {
    if (world.name == name) return world;
  }
  throw Error("no world named '" + name + "'");
}

std::vector<std::string> world_names() {
  std::vector<std::string> names;
  for (const World& world : worlds()) names.push_back(world.name);
  return names;
}

std::optional<Given> Letter::attributes(const std::vector<Ints>& shapes) const {
  Given result = attrs;
  const Ints& first = shapes[0];
  const auto rank = static_cast<int64_t>(first.size());
  switch (form) {
    case Form::Plain:
      // Numbers scale and shift; they are not matrices.
      if (rank < 2) return std::nullopt;
      return result;
    case Form::Elementwise: {
      // Tensors of one shape; or a tensor and a number: scaled by an input, shifted by a constant.
      if (first == shapes[1]) return rank < 2 ? std::nullopt : std::optional(result);
      const Ints& number = first.size() < shapes[1].size() ? first : shapes[1];
      const Ints& tensor = first.size() < shapes[1].size() ? shapes[1] : first;
      if (tensor.size() < 2 || number.size() != (op == Op::Mul ? 1 : 0)) return std::nullopt;
      return result;
    }
    case Form::Half: {
      if (axis >= rank || first[static_cast<size_t>(axis)] % 2 != 0) return std::nullopt;
      const int64_t part = first[static_cast<size_t>(axis)] / 2;
      if (op == Op::Split) return Given{{"axis", axis}, {"sizes", Ints{part, part}}};
      return Given{{"axes", Ints{axis}}, {"starts", Ints{0}}, {"ends", Ints{part}}};
    }
    case Form::Image:
      if (!is_image(first)) return std::nullopt;
      return result;
    case Form::SameConv: {
      if (!is_image(first) || shapes[1].size() != 4) return std::nullopt;
      const int64_t h = shapes[1][2], w = shapes[1][3];
      if (h > 3 || w > 3 || h % 2 == 0 || w % 2 == 0) return std::nullopt;
      result.emplace_back("pads", Ints{h / 2, w / 2, h / 2, w / 2});
      return result;
    }
    case Form::EnlargeKernel: {
      if (rank != 4 || first[2] % 2 == 0 || first[3] % 2 == 0 || first[2] * first[3] > 3) return std::nullopt;
      const int64_t h = (3 - first[2]) / 2, w = (3 - first[3]) / 2;
      return Given{{"pads", Ints{0, 0, h, w, 0, 0, h, w}}};
    }
    case Form::MergeAxes:
    case Form::SplitAxis: {
      const auto at = static_cast<size_t>(axis);
      Ints shape = first;
      if (form == Form::MergeAxes) {
        if (at + 1 >= shape.size()) return std::nullopt;
        shape[at] *= shape[at + 1];
        shape.erase(shape.begin() + axis + 1);
      } else {
        if (at >= shape.size() || shape.size() > 3 || shape[at] % 2 != 0) return std::nullopt;
        shape[at] /= 2;
        shape.insert(shape.begin() + axis, 2);
      }
      return Given{{"shape", shape}};
    }
  }
  return std::nullopt;
}

std::vector<Ints> trial_shapes(const World& world, int trial) {
  std::vector<Ints> shapes;
  for (const InputSort& sort : world.sorts) shapes.push_back(sort.shapes[static_cast<size_t>(trial)]);
  return shapes;
}

Floats InputSort::values(const Ints& dims) const {
  if (fill == Fill::Number) return {number};
  const int64_t columns = dims[1];
  const int64_t taps = dims.size() == 4 ? dims[2] * dims[3] : 1;
  Floats result;
  for (int64_t row = 0; row < dims[0]; ++row) {
    for (int64_t i = 0; i < columns * taps; ++i) {
      const bool is_diagonal = i / taps == row % columns;
      result.push_back(is_diagonal ? (fill == Fill::Mean ? 1.0 / static_cast<double>(taps) : 1.0) : 0.0);
    }
  }
  return result;
}

ValueNumbers::ValueNumbers(const World& world) {
  for (size_t s = 0; s < world.sorts.size(); ++s) {
    for (int i = 0; i < world.sorts[s].count; ++i) {
      sort_of_.push_back(static_cast<int>(s));
      position_.push_back(i);
      const bool is_first = i == 0;
      names_.push_back(world.sorts[s].name + (is_first ? "" : std::to_string(i + 1)));
    }
  }
  add_renamings(world, 0, {}, renamings_);
}

std::vector<int> term_outputs(const World& world, const ValueNumbers& numbers, const Term& term) {
  if (term.num_ops == 0) return {term.input};
  std::vector<int> outputs;
  for (int i = 0; i < term.num_ops; ++i) {
    for (int k = 0; k < world.letters[term.ops[static_cast<size_t>(i)].letter].num_outputs; ++k) {
      const int value = numbers.output(i, k);
      bool is_read = false;
      for (int j = i + 1; j < term.num_ops; ++j) {
        for (const int8_t in : term.ops[static_cast<size_t>(j)].ins) is_read |= in == value;
      }
      if (!is_read) outputs.push_back(value);
    }
  }
  return outputs;
}

Term renamed(const ValueNumbers& numbers, const Term& term, const std::vector<int>& renaming) {
  const auto name_of = [&](int8_t value) {
    return value >= 0 && numbers.is_input(value) ? static_cast<int8_t>(renaming[static_cast<size_t>(value)])
                                                 : value;
  };
  Term result = term;
  result.input = name_of(term.input);
  for (auto& op : result.ops) {
    for (int8_t& in : op.ins) in = name_of(in);
  }
  return result;
}

Term part_of_term(const World& world, const ValueNumbers& numbers, const Term& term, uint32_t ops) {
  Term part;
  std::map<int8_t, int8_t> moved;
  for (int i = 0; i < term.num_ops; ++i) {
    if ((ops >> i & 1U) == 0) continue;
    TermOp op = term.ops[static_cast<size_t>(i)];
    for (int8_t& in : op.ins) {
      if (const auto it = moved.find(in); it != moved.end()) in = it->second;
    }
    for (int k = 0; k < world.letters[op.letter].num_outputs; ++k) {
      moved[static_cast<int8_t>(numbers.output(i, k))] = static_cast<int8_t>(numbers.output(part.num_ops, k));
    }
    part.ops[part.num_ops++] = op;
  }
  return part;
}

uint64_t term_hash(const World& world, const ValueNumbers& numbers, const Term& term) {
  std::map<int, uint64_t> hashes;
  const auto hash_of = [&](int value) {
    return numbers.is_input(value) ? hash_mix(17, static_cast<uint64_t>(value)) : hashes.at(value);
  };
  for (int i = 0; i < term.num_ops; ++i) {
    const TermOp& op = term.ops[static_cast<size_t>(i)];
    const Letter& letter = world.letters[op.letter];
    uint64_t a = hash_of(op.ins[0]);
    uint64_t b = letter.arity > 1 ? hash_of(op.ins[1]) : 0;
    if (is_commutative(letter.op) && b < a) std::swap(a, b);
    for (int k = 0; k < letter.num_outputs; ++k) {
      hashes[numbers.output(i, k)] = hash_mix(hash_mix(hash_mix(op.letter, static_cast<uint64_t>(k)), a), b);
    }
  }
  std::vector<uint64_t> outputs;
  for (const int value : term_outputs(world, numbers, term)) outputs.push_back(hash_of(value));
  std::sort(outputs.begin(), outputs.end());
  uint64_t total = outputs.size();
  for (const uint64_t each : outputs) total = hash_mix(total, each);
  return total;
}

Graph term_graph(const World& world, const ValueNumbers& numbers, const Term& term,
                 const std::vector<int>& outputs, const std::vector<Ints>& shapes,
                 const std::vector<bool>& statics) {
  GraphEdit edit;
  std::map<int, Value> values;
  const auto is_read = [&](int input) {
    return term.input == input || std::any_of(term.ops.begin(), term.ops.end(), [&](const TermOp& op) {
             return op.ins[0] == input || op.ins[1] == input;
           });
  };
  // All inputs, and first: they have the same ids in every graph.
  std::vector<int> order;
  for (const bool constants : {false, true}) {
    for (int i = 0; i < numbers.num_inputs(); ++i) {
      const InputSort& sort = world.sorts[static_cast<size_t>(numbers.sort_of(i))];
      if (sort.is_constant() == constants && (!constants || is_read(i))) order.push_back(i);
    }
  }
  for (const int i : order) {
    const InputSort& sort = world.sorts[static_cast<size_t>(numbers.sort_of(i))];
    const Ints& shape = shapes[static_cast<size_t>(numbers.sort_of(i))];
    TensorType type;
    for (const int64_t size : shape) type.dims.emplace_back(size);
    if (sort.is_constant()) {
      values[i] = {
          edit.add_node(Op::Constant, Attrs::make(Op::Constant, {{"value", sort.values(shape)}}), {}, {type}),
          0};
    } else {
      const bool is_weight = !statics.empty() && statics[static_cast<size_t>(i)];
      values[i] = {edit.add_input(numbers.name(i), type, is_weight), 0};
    }
  }
  for (int i = 0; i < term.num_ops; ++i) {
    const TermOp& op = term.ops[static_cast<size_t>(i)];
    const Letter& letter = world.letters[op.letter];
    std::vector<Value> inputs;
    std::vector<Ints> operand_shapes;
    for (int k = 0; k < letter.arity; ++k) {
      inputs.push_back(values.at(op.ins[static_cast<size_t>(k)]));
      operand_shapes.emplace_back();
      for (const Dim& dim : edit.graph().type(inputs.back()).dims)
        operand_shapes.back().push_back(dim.value());
    }
    const auto attrs = letter.attributes(operand_shapes);
    if (!attrs) throw TypeError(letter.name + " does not apply");
    const NodeId id = add_inferred(edit, letter.op, Attrs::make(letter.op, *attrs), inputs);
    for (int k = 0; k < letter.num_outputs; ++k) values[numbers.output(i, k)] = {id, k};
  }
  std::vector<Value> found;
  std::vector<std::string> names;
  for (const int value : outputs) {
    found.push_back(values.at(value));
    names.push_back("y" + std::to_string(names.size() + 1));
  }
  edit.set_outputs(std::move(found), std::move(names));
  return edit.finish();
}

}  // namespace rlopt
