// Reference: attention and rotary embedding.
#include <cmath>

#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// An operand as [batch, heads, length, size], whether given so or as [batch, length, heads * size].
struct HeadsView {
  Sizes dims;
  Sizes strides;
};

HeadsView view_heads(const Sizes& dims, int64_t heads) {
  if (dims.size() == 4) return {dims, row_major_strides(dims)};
  const int64_t size = dims[2] / heads;
  return {{dims[0], heads, dims[1], size}, {dims[1] * dims[2], size, dims[2], 1}};
}

/// Scores of one query against all keys, masked, then softmax.
template <class A>
class ScoreRow {
 public:
  using T = typename A::T;

  ScoreRow(const Call& call, int64_t head_size)
      : call_(call), is_causal_(call.node.attr_int("is_causal") != 0) {
    const double given = call.node.attr_float("scale");
    // Compute the default as the decomposed operators do, so that both give the same field element.
    scale_ = A::from_double(given == 0 ? 1.0 / std::sqrt(static_cast<double>(head_size)) : given);
    const double cap = call.node.attr_float("softcap");
    has_cap_ = cap > 0;
    if (has_cap_) cap_ = A::from_double(cap);
  }

  T score(T product) const {
    const T scaled = A::mul(product, scale_);
    return has_cap_ ? A::mul(A::tanh(A::div(scaled, cap_)), cap_) : scaled;
  }

  /// Score of query `q` and key `k`; `at` is the position in the mask.
  T masked(T score, int64_t q, int64_t k, int64_t at) const {
    if (is_causal_ && k > q) return A::lowest();
    if (!call_.has(3)) return score;
    const RefTensor& mask = *call_.in[3];
    if (call_.in_dtypes[3] == DType::boolean)
      return mask.ints[static_cast<size_t>(at)] != 0 ? score : A::lowest();
    return A::add(score, data<T>(mask)[static_cast<size_t>(at)]);
  }

 private:
  const Call& call_;
  bool is_causal_;
  bool has_cap_ = false;
  T scale_{};
  T cap_{};
};

template <class A>
bool attention(const Call& call) {
  using T = typename A::T;
  const HeadsView q = view_heads(call.in[0]->dims, call.node.attr_int("q_num_heads"));
  const HeadsView k = view_heads(call.in[1]->dims, call.node.attr_int("kv_num_heads"));
  const HeadsView v = view_heads(call.in[2]->dims, call.node.attr_int("kv_num_heads"));
  const HeadsView out = view_heads(call.out[0].dims, q.dims[1]);
  const int64_t keys = k.dims[2];
  const int64_t heads_per_key = k.dims[1] == 0 ? 1 : q.dims[1] / k.dims[1];
  const ScoreRow<A> row(call, q.dims[3]);
  const Sizes scores_dims{q.dims[0], q.dims[1], q.dims[2], keys};
  const Sizes mask = call.has(3) ? broadcast_strides(call.in[3]->dims, scores_dims) : Sizes(4, 0);
  const T* query = data<T>(*call.in[0]).data();
  const T* key = data<T>(*call.in[1]).data();
  const T* value = data<T>(*call.in[2]).data();
  auto& result = data<T>(call.out[0]);
  result.resize(static_cast<size_t>(count(call.out[0].dims)));
  std::vector<T> scores(static_cast<size_t>(keys));
  const auto at = [](const HeadsView& view, int64_t n, int64_t h, int64_t i) {
    return n * view.strides[0] + h * view.strides[1] + i * view.strides[2];
  };
  for_each_index<1>({q.dims[0], q.dims[1], q.dims[2]}, {Sizes{mask[0], mask[1], mask[2]}},
                    [&](int64_t index, const std::array<int64_t, 1>& mask_at) {
                      const int64_t i = index % q.dims[2];
                      const int64_t h = index / q.dims[2] % q.dims[1];
                      const int64_t n = index / q.dims[2] / q.dims[1];
                      for (int64_t j = 0; j < keys; ++j) {
                        typename A::Accumulator sum{};
                        const T* x = query + at(q, n, h, i);
                        const T* y = key + at(k, n, h / heads_per_key, j);
                        for (int64_t d = 0; d < q.dims[3]; ++d) A::accumulate(sum, x[d], y[d]);
                        scores[static_cast<size_t>(j)] =
                            row.masked(row.score(A::finish(sum)), i, j, mask_at[0] + j * mask[3]);
                      }
                      softmax_row<A>(scores.data(), keys, 1, true);
                      for (int64_t d = 0; d < v.dims[3]; ++d) {
                        typename A::Accumulator sum{};
                        for (int64_t j = 0; j < keys; ++j) {
                          A::accumulate(sum, scores[static_cast<size_t>(j)],
                                        value[at(v, n, h / heads_per_key, j) + d]);
                        }
                        result[static_cast<size_t>(at(out, n, h, i) + d)] = A::finish(sum);
                      }
                    });
  return true;
}

template <class A>
bool rotary(const Call& call) {
  using T = typename A::T;
  const HeadsView x = view_heads(call.in[0]->dims, call.node.attr_int("num_heads"));
  const bool is_interleaved = call.node.attr_int("interleaved") != 0;
  const int64_t part = call.node.attr_int("rotary_embedding_dim");
  const int64_t half = (part > 0 ? part : x.dims[3]) / 2;
  const auto& source = data<T>(*call.in[0]);
  const auto& cosines = data<T>(*call.in[1]);
  const auto& sines = data<T>(*call.in[2]);
  auto& out = data<T>(call.out[0]);
  out = source;  // copies what is beyond the rotated part
  for_each_index<1>({x.dims[0], x.dims[1], x.dims[2]}, {Sizes{x.strides[0], x.strides[1], x.strides[2]}},
                    [&](int64_t index, const std::array<int64_t, 1>& at) {
                      const int64_t token = index / x.dims[2] / x.dims[1] * x.dims[2] + index % x.dims[2];
                      int64_t position = token;
                      if (call.has(3)) {
                        position = call.in[3]->ints[static_cast<size_t>(token)];
                        const int64_t rows = call.in[1]->dims[0];
                        if (position < 0) position += rows;
                        if (position < 0 || position >= rows) {
                          throw TypeError("RotaryEmbedding: expected position ids below " +
                                          std::to_string(rows) + ", got " + std::to_string(position));
                        }
                      }
                      for (int64_t d = 0; d < half; ++d) {
                        const auto first = static_cast<size_t>(at[0] + (is_interleaved ? 2 * d : d));
                        const auto second =
                            static_cast<size_t>(at[0] + (is_interleaved ? 2 * d + 1 : d + half));
                        const T cosine = cosines[static_cast<size_t>(position * half + d)];
                        const T sine = sines[static_cast<size_t>(position * half + d)];
                        out[first] = A::sub(A::mul(cosine, source[first]), A::mul(sine, source[second]));
                        out[second] = A::add(A::mul(sine, source[first]), A::mul(cosine, source[second]));
                      }
                    });
  return true;
}

}  // namespace

template <class A>
bool eval_attention(const Call& call) {
  if (call.node.op == Op::Attention) return attention<A>(call);
  if (call.node.op == Op::RotaryEmbedding) return rotary<A>(call);
  return false;
}

template bool eval_attention<RealAlgebra>(const Call&);
template bool eval_attention<FieldAlgebra>(const Call&);
template bool eval_attention<IntAlgebra>(const Call&);

}  // namespace rlopt
