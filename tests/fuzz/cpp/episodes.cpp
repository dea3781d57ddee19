// libFuzzer: the bytes are what is done with an environment whose episodes are stepped by two threads:
// resets, copies, legal and illegal actions, observations into arrays of exactly the right size. Every
// episode stays sound. Also built with ThreadSanitizer.
#include <fuzzer/FuzzedDataProvider.h>

#include "env/env.h"
#include "examine.h"

namespace rlopt::fuzz {

namespace {

constexpr int kEpisodes = 4;
constexpr int kMaxCalls = 12;

std::vector<Graph> graphs() {
  return {parse_graph(R"(
    graph (x: f32[1,s0,32], %wq: f32[32,32], %wk: f32[32,32], %wv: f32[32,16], %bq: f32[32], %wo: f32[16,32]) {
      q0 = MatMul(x, %wq)
      q = Add(q0, %bq)
      k = MatMul(x, %wk)
      v = MatMul(x, %wv)
      kt = Transpose(k; perm=[0,2,1])
      scale: f32[] = Constant(; value=[0.17677669529663687])
      s0 = MatMul(q, kt)
      s1 = Mul(s0, scale)
      p = Softmax(s1)
      o = MatMul(p, v)
      m = MatMul(o, %wo)
      r = Add(x, m)
      t = Relu(r)
      i = Identity(t)
      return i
    })"),
          parse_graph(R"(
    graph (x: f32[1,8,10,10], %a: f32[8,8,3,3], %b: f32[8,8,1,1], %s: f32[8], %o: f32[8], %m: f32[8], %v: f32[8]) {
      p = Conv(x, %a; pads=[1,1,1,1])
      q = Conv(x, %b)
      n = BatchNormalization(p, %s, %o, %m, %v)
      r = Relu(n)
      t = Relu(q)
      c = Concat(r, t; axis=1)
      f, g = Split(c; axis=1, sizes=[8,8])
      y = Add(f, g)
      z = Neg(y)
      w = Neg(z)
      return w, y
    })")};
}

/// Arrays of their own, so that a write beyond one of them is seen.
void observe(VecRewriteEnv& env, const std::vector<int>& envs) {
  const ObservationSizes sizes = env.prepare(envs);
  const auto width = [](const char* array) { return static_cast<size_t>(num_columns(array)); };
  std::vector<int64_t> nodes_from(sizes.episodes + 1), edges_from(sizes.episodes + 1),
      candidates_from(sizes.episodes + 1), ops(sizes.nodes), edge_index(2 * sizes.edges),
      substitutions(sizes.candidates), locations(sizes.candidates), matched_from(sizes.candidates + 1),
      matched(sizes.matched);
  std::vector<float> nodes(sizes.nodes * width("node")), edges(sizes.edges * width("edge")),
      globals(sizes.episodes * width("global")), candidates(sizes.candidates * width("candidate"));
  env.observe({nodes_from.data(), edges_from.data(), candidates_from.data(), ops.data(), nodes.data(),
               edge_index.data(), edges.data(), globals.data(), substitutions.data(), locations.data(),
               candidates.data(), matched_from.data(), matched.data()});
  require(nodes_from.back() == static_cast<int64_t>(sizes.nodes), "rows of nodes are missing");
  require(matched_from.back() == static_cast<int64_t>(sizes.matched), "matched nodes are missing");
}

void call(VecRewriteEnv& env, FuzzedDataProvider& data) {
  const auto episode = [&] { return data.ConsumeIntegralInRange(-1, kEpisodes); };
  switch (data.ConsumeIntegralInRange(0, 7)) {
    case 0:
      env.reset({episode()}, {{data.ConsumeIntegralInRange(-1, 2),
                               {},
                               data.ConsumeIntegralInRange(0, 6),
                               data.ConsumeIntegral<uint64_t>()}});
      break;
    case 1:
      env.copy(episode(), episode());
      break;
    case 2:
      observe(env, {});
      break;
    case 3:
      observe(env, {episode(), episode()});
      break;
    case 4: {
      const size_t count = env.library().substitutions().size();
      const std::unique_ptr<bool[]> one(new bool[kEpisodes * (count + 1)]),
          other(new bool[kEpisodes * count * static_cast<size_t>(env.options().max_locations)]);
      env.masks(one.get(), other.get());
      break;
    }
    default: {
      std::vector<int64_t> actions(kEpisodes);
      for (int64_t& each : actions) each = data.ConsumeIntegralInRange(-1, 30);
      env.step(actions);
    }
  }
}

}  // namespace

}  // namespace rlopt::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace rlopt;
  static const std::vector<Graph> starts = fuzz::graphs();
  static VecRewriteEnv env(starts, fuzz::library(), CostModel(DeviceModel{}, nullptr, Sizes{}),
                           {fuzz::kEpisodes, 2, 20, 5, true, false});
  FuzzedDataProvider data(bytes, size);
  std::vector<Start> begin(fuzz::kEpisodes);
  for (Start& start : begin) start.graph = data.ConsumeIntegralInRange(0, 1);
  env.reset({0, 1, 2, 3}, begin);
  for (int i = 0; i < fuzz::kMaxCalls && data.remaining_bytes() > 0; ++i) {
    try {
      fuzz::call(env, data);
    } catch (const EnvError&) {  // refused: the environment goes on as it was
    }
  }
  for (int i = 0; i < fuzz::kEpisodes; ++i) check_graph(env.episode(i).state().graph());
  return 0;
}
