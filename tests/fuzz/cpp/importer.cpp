// libFuzzer: the bytes are calls of the graph builder, as the reader of ONNX models makes them: inputs,
// constants, opaque nodes and typed nodes with any attributes, in any order. Each call is refused with an
// error of the core or leaves a sound graph behind.
#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <limits>

#include "examine.h"

namespace rlopt::fuzz {

namespace {

constexpr int kMaxCalls = 40;

class Importer {
 public:
  Importer(const uint8_t* bytes, size_t size) : data_(bytes, size) {}

  Graph run() {
    for (int i = 0; i < kMaxCalls && data_.remaining_bytes() > 0; ++i) {
      try {
        call();
      } catch (const Error&) {  // refused: the builder goes on as it was
      }
    }
    std::vector<Value> outputs;
    std::vector<std::string> names;
    for (size_t i = 0; i < values_.size(); i += 1 + values_.size() / 4) {
      outputs.push_back(values_[values_.size() - 1 - i]);
      names.push_back("out" + std::to_string(i));
    }
    edit_.set_outputs(outputs, names);
    return edit_.finish();
  }

 private:
  void call() {
    switch (data_.ConsumeIntegralInRange(0, 9)) {
      case 0:
      case 1:
        remember(edit_.add_input(name(), type(), data_.ConsumeBool()));
        break;
      case 2: {
        const TensorType only = type();
        remember(edit_.add_node(Op::Constant, attributes(Op::Constant), {}, {only}, {name(), {name()}}));
        break;
      }
      case 3: {
        std::vector<TensorType> types(data_.ConsumeIntegralInRange<size_t>(0, 2));
        for (TensorType& each : types) each = type();
        remember(
            edit_.add_node(Op::Opaque, attributes(Op::Opaque), inputs(), types, {name(), {name(), name()}}));
        break;
      }
      default: {
        const Op op = static_cast<Op>(data_.ConsumeIntegralInRange(0, static_cast<int>(kNumOps) - 1));
        remember(add_inferred(edit_, op, attributes(op), inputs(), {name(), {name()}}));
      }
    }
  }

  void remember(NodeId id) {
    for (int i = 0; i < edit_.graph().node(id).num_outputs(); ++i) values_.push_back({id, i});
  }

  std::vector<Value> inputs() {
    std::vector<Value> chosen(data_.ConsumeIntegralInRange<size_t>(0, 5));
    for (Value& each : chosen) {
      const int kind = data_.ConsumeIntegralInRange(0, 15);
      if (kind == 0) continue;  // omitted
      if (kind == 1 || values_.empty()) {
        each = {data_.ConsumeIntegral<int8_t>(), data_.ConsumeIntegral<int8_t>()};
      } else {
        each = values_[values_.size() - 1 - data_.ConsumeIntegralInRange<size_t>(0, values_.size() - 1)];
      }
    }
    return chosen;
  }

  AttrsPtr attributes(Op op) {
    std::vector<std::pair<std::string, AttrValue>> given;
    for (const AttrSpec& spec : op_info(op).attrs) {
      if (!spec.required && data_.ConsumeBool()) continue;
      const auto any = static_cast<AttrKind>(data_.ConsumeIntegralInRange(0, 4));
      given.emplace_back(spec.name, value(data_.ConsumeIntegralInRange(0, 31) == 0 ? any : spec.kind));
    }
    if (data_.ConsumeIntegralInRange(0, 63) == 0) given.emplace_back(name(), value(AttrKind::Int));
    return Attrs::make(op, given);
  }

  AttrValue value(AttrKind kind) {
    switch (kind) {
      case AttrKind::Int:
        return integer();
      case AttrKind::Float:
        return real();
      case AttrKind::String:
        return word();
      case AttrKind::Ints: {
        Ints ints(data_.ConsumeIntegralInRange<size_t>(0, 8));
        for (int64_t& each : ints) each = integer();
        return ints;
      }
      case AttrKind::Floats: {
        Floats floats(data_.ConsumeIntegralInRange<size_t>(0, 4));
        for (double& each : floats) each = real();
        return floats;
      }
    }
    return int64_t{0};
  }

  int64_t integer() {
    using Limits = std::numeric_limits<int64_t>;
    constexpr std::array<int64_t, 10> kExtremes{
        Limits::min(),    Limits::min() + 1,     Limits::max(),       Limits::max() - 1,
        int64_t{1} << 31, int64_t{1} << 32,      -(int64_t{1} << 31), (int64_t{1} << 53) + 1,
        int64_t{1} << 62, (int64_t{1} << 31) - 1};
    const int kind = data_.ConsumeIntegralInRange(0, 31);
    if (kind == 0) return data_.PickValueInArray(kExtremes);
    if (kind == 1) return data_.ConsumeIntegral<int64_t>();
    return data_.ConsumeIntegralInRange<int64_t>(-3, 9);
  }

  double real() {
    constexpr std::array<double, 14> kReals{0.0,
                                            -0.0,
                                            1.0,
                                            0.5,
                                            2.0,
                                            -1.0,
                                            1e-6,
                                            1e300,
                                            1e-300,
                                            5e-324,
                                            0.25,
                                            1e18,
                                            std::numeric_limits<double>::infinity(),
                                            -std::numeric_limits<double>::infinity()};
    return data_.ConsumeBool() ? data_.PickValueInArray(kReals)
                               : static_cast<double>(data_.ConsumeIntegralInRange(-8, 8)) / 4;
  }

  std::string word() {
    static const std::array<const char*, 26> kWords{
        "",       "none",  "tanh",    "f32",      "i64",       "bool",         "other",   "DCR",  "CRD",
        "linear", "cubic", "nearest", "constant", "edge",      "wrap",         "reflect", "LEFT", "RIGHT",
        "add",    "mul",   "Relu",    "Clip",     "ij,jk->ik", "bij,bjk->bik", "...i,i",  "i,j->"};
    return data_.ConsumeIntegralInRange(0, 7) == 0 ? data_.ConsumeRandomLengthString(12)
                                                   : data_.PickValueInArray(kWords);
  }

  std::string name() {
    return data_.ConsumeIntegralInRange(0, 7) == 0
               ? data_.ConsumeRandomLengthString(6)
               : "n" + std::to_string(data_.ConsumeIntegralInRange(0, 40));
  }

  TensorType type() {
    TensorType result;
    result.dtype = data_.ConsumeBool() ? DType::f32 : static_cast<DType>(data_.ConsumeIntegralInRange(0, 15));
    result.has_rank = data_.ConsumeIntegralInRange(0, 15) != 0;
    if (!result.has_rank) return result;
    result.dims.resize(data_.ConsumeIntegralInRange<size_t>(0, 5));
    for (Dim& each : result.dims) each = dim();
    return result;
  }

  Dim dim() {
    static const std::array<const char*, 6> kSymbolic{"s0", "s1", "2*s0+1", "s0*s1", "(s0+1)//2", "s0-1"};
    switch (data_.ConsumeIntegralInRange(0, 31)) {
      case 0:
        return Dim::parse(data_.ConsumeRandomLengthString(24));
      case 1:
        return integer();
      case 2:
      case 3:
      case 4:
        return Dim::parse(data_.PickValueInArray(kSymbolic));
      default:
        return data_.ConsumeIntegralInRange<int64_t>(0, 8);
    }
  }

  FuzzedDataProvider data_;
  GraphEdit edit_;
  std::vector<Value> values_;
};

}  // namespace

}  // namespace rlopt::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rlopt::fuzz::examine(rlopt::fuzz::Importer(data, size).run());
  return 0;
}
