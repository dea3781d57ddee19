#include "enumerate/program.h"

#include <unordered_map>

#include "tools/reference/algebra.h"
#include "tools/reference/reference.h"

namespace rlopt {

namespace {

using A = FieldAlgebra;

int64_t num_elements(const Ints& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

/// One operator on inputs of fixed shapes, evaluated by the reference interpreter.
class Probe {
 public:
  Probe(const Letter& letter, const std::vector<Ints>& shapes, const Attrs& attrs) {
    GraphEdit edit;
    std::vector<Value> inputs;
    for (const Ints& shape : shapes) {
      TensorType type;
      for (const int64_t size : shape) type.dims.emplace_back(size);
      const NodeId id = edit.add_input("x" + std::to_string(inputs.size()), type, false);
      inputs.push_back({id, 0});
      data_[id] = {shape, std::vector<int64_t>(static_cast<size_t>(num_elements(shape)), 0), {}};
      ids_.push_back(id);
    }
    const NodeId id = add_inferred(edit, letter.op, std::make_shared<const Attrs>(attrs), inputs);
    std::vector<Value> outputs;
    std::vector<std::string> names;
    for (int k = 0; k < edit.graph().node(id).num_outputs(); ++k) {
      outputs.push_back({id, k});
      names.push_back("y" + std::to_string(k));
    }
    edit.set_outputs(std::move(outputs), std::move(names));
    graph_ = edit.finish();
  }

  std::vector<int64_t>& data(size_t input) { return data_.at(ids_[input]).ints; }

  /// Elements of all outputs, concatenated.
  std::vector<int64_t> run(std::vector<Ints>* shapes = nullptr) const {
    std::vector<int64_t> all;
    for (const RefTensor& tensor : evaluate(graph_, data_, Arithmetic::Field)) {
      all.insert(all.end(), tensor.ints.begin(), tensor.ints.end());
      if (shapes != nullptr) shapes->push_back(tensor.dims);
    }
    return all;
  }

 private:
  Graph graph_;
  std::vector<NodeId> ids_;
  std::unordered_map<NodeId, RefTensor> data_;
};

void read_linear(Probe& probe, const std::vector<Ints>& shapes, Program& program) {
  int32_t number = 0;
  for (size_t k = 0; k < shapes.size(); ++k) {
    for (int64_t i = 0; i < num_elements(shapes[k]); ++i, ++number) {
      probe.data(k)[static_cast<size_t>(i)] = 1;
      const std::vector<int64_t> results = probe.run();
      probe.data(k)[static_cast<size_t>(i)] = 0;
      for (size_t o = 0; o < results.size(); ++o) {
        if (results[o] != 0) program.elements[o].push_back({number, -1, static_cast<uint32_t>(results[o])});
      }
    }
  }
}

/// For each unit tensor on the left, recognises the right operand's element by its value; products of our
/// operators have factor 1 and one right element for each left one.
void read_bilinear(Probe& probe, const std::vector<Ints>& shapes, Program& program) {
  std::unordered_map<int64_t, int32_t> element_of;
  auto& right = probe.data(1);
  for (size_t j = 0; j < right.size(); ++j) {
    right[j] = A::reduce(static_cast<int64_t>(hash_mix(99, j) >> 2));
    element_of.emplace(right[j], static_cast<int32_t>(j));
  }
  for (int64_t i = 0; i < num_elements(shapes[0]); ++i) {
    probe.data(0)[static_cast<size_t>(i)] = 1;
    const std::vector<int64_t> results = probe.run();
    probe.data(0)[static_cast<size_t>(i)] = 0;
    for (size_t o = 0; o < results.size(); ++o) {
      if (results[o] == 0) continue;
      const auto it = element_of.find(results[o]);
      if (it == element_of.end())
        throw Error("an operator of the enumeration is not bilinear with factors 1");
      program.elements[o].push_back({static_cast<int32_t>(i), it->second, 1});
    }
  }
}

uint32_t reduce(uint64_t sum) {
  sum = (sum & A::kPrime) + (sum >> 31);
  sum = (sum & A::kPrime) + (sum >> 31);
  return sum >= A::kPrime ? static_cast<uint32_t>(sum - A::kPrime) : static_cast<uint32_t>(sum);
}

}  // namespace

const Program* Programs::find(int letter, const std::vector<Ints>& shapes) {
  const auto [it, is_new] = programs_.try_emplace({letter, shapes});
  if (is_new) it->second = compile(world_.letters[static_cast<size_t>(letter)], shapes);
  return it->second.get();
}

std::unique_ptr<Program> Programs::compile(const Letter& letter, const std::vector<Ints>& shapes) const {
  const auto attrs = letter.attributes(shapes);
  if (!attrs) return nullptr;
  auto program = std::make_unique<Program>();
  try {
    Probe probe(letter, shapes, *Attrs::make(letter.op, *attrs));
    const size_t total = probe.run(&program->shapes).size();
    for (const Ints& shape : program->shapes) {
      if (num_elements(shape) > world_.max_elements || num_elements(shape) == 0) return nullptr;
    }
    if (program->shapes.size() != static_cast<size_t>(letter.num_outputs)) return nullptr;
    program->is_function = op_info(letter.op).cost_class == CostClass::Transcendental;
    if (program->is_function) return program;
    program->elements.resize(total);
    program->is_bilinear = letter.op == Op::Mul || op_info(letter.op).cost_class == CostClass::Contraction;
    program->is_bilinear ? read_bilinear(probe, shapes, *program) : read_linear(probe, shapes, *program);
  } catch (const TypeError&) {
    return nullptr;
  }
  return program;
}

std::vector<Lanes> run_program(const Program& program, const std::vector<const Lanes*>& ins, int num_lanes) {
  const auto width = static_cast<size_t>(num_lanes);
  std::vector<Lanes> results;
  for (const Ints& shape : program.shapes) {
    results.emplace_back(static_cast<size_t>(num_elements(shape)) * width);
  }
  if (program.is_function) {
    for (size_t i = 0; i < results[0].size(); ++i) {
      results[0][i] = static_cast<uint32_t>(A::uninterpreted(A::key("f"), (*ins[0])[i]));
    }
    return results;
  }
  const size_t first = ins[0]->size() / width;  // elements of the first operand
  const auto at = [&](int32_t element) {
    const auto i = static_cast<size_t>(element);
    return i < first ? ins[0]->data() + i * width : ins[1]->data() + (i - first) * width;
  };
  std::vector<uint64_t> sums(width);
  size_t output = 0, element = 0;
  for (const auto& products : program.elements) {
    while (element * width == results[output].size()) {
      ++output;
      element = 0;
    }
    uint32_t* to = results[output].data() + element++ * width;
    if (products.size() == 1 && products[0].b < 0 && products[0].factor == 1) {
      std::copy_n(at(products[0].a), width, to);
      continue;
    }
    std::fill(sums.begin(), sums.end(), 0);
    for (const Program::Product& product : products) {
      const uint32_t* a = at(product.a);
      if (product.b >= 0) {
        const uint32_t* b = ins[1]->data() + static_cast<size_t>(product.b) * width;
        for (size_t l = 0; l < width; ++l) {
          sums[l] += static_cast<uint64_t>(a[l]) * b[l];
          sums[l] = (sums[l] & A::kPrime) + (sums[l] >> 31);
        }
      } else {
        for (size_t l = 0; l < width; ++l) {
          sums[l] += static_cast<uint64_t>(a[l]) * product.factor;
          sums[l] = (sums[l] & A::kPrime) + (sums[l] >> 31);
        }
      }
    }
    for (size_t l = 0; l < width; ++l) to[l] = reduce(sums[l]);
  }
  return results;
}

}  // namespace rlopt
