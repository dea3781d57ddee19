// Reference: attention and rotary embedding.
#include <cmath>

#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// An operand as [batch, heads, length, size], whether given so or as [batch, length, heads * size].
struct HeadsView {
  Sizes dims;
  Sizes strides;

  HeadsView(const Sizes& given, int64_t heads) : dims(given), strides(row_major_strides(given)) {
    if (given.size() == 4) return;
    const int64_t size = given[2] / heads;
    dims = {given[0], heads, given[1], size};
    strides = {given[1] * given[2], size, given[2], 1};
  }
  int64_t at(int64_t n, int64_t h, int64_t i) const {
    return n * strides[0] + h * strides[1] + i * strides[2];
  }
};

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
    if (call_.in_dtypes[3] == DType::boolean) return call_.in[3]->ints[at] != 0 ? score : A::lowest();
    return A::add(score, call_.operand<T>(3)[at]);
  }

 private:
  const Call& call_;
  bool is_causal_;
  bool has_cap_ = false;
  T scale_{};
  T cap_{};
};

template <class A>
void attention(const Call& call) {
  using T = typename A::T;
  const HeadsView q(call.in[0]->dims, call.node.attr_int("q_num_heads"));
  const HeadsView k(call.in[1]->dims, call.node.attr_int("kv_num_heads"));
  const HeadsView v(call.in[2]->dims, call.node.attr_int("kv_num_heads"));
  const HeadsView out(call.out[0].dims, q.dims[1]);
  const int64_t keys = k.dims[2];
  const int64_t heads_per_key = k.dims[1] == 0 ? 1 : q.dims[1] / k.dims[1];
  const ScoreRow<A> row(call, q.dims[3]);
  const Sizes scores_dims{q.dims[0], q.dims[1], q.dims[2], keys};
  const Sizes mask = call.has(3) ? broadcast_strides(call.in[3]->dims, scores_dims) : Sizes(4, 0);
  const T *query = call.operand<T>(0).data(), *key = call.operand<T>(1).data(),
          *value = call.operand<T>(2).data();
  auto& result = call.result<T>();
  std::vector<T> scores(static_cast<size_t>(keys));
  const auto attend = [&](int64_t index, const std::array<int64_t, 1>& mask_at) {
    const int64_t i = index % q.dims[2], h = index / q.dims[2] % q.dims[1], n = index / q.dims[2] / q.dims[1];
    for (int64_t j = 0; j < keys; ++j) {
      typename A::Accumulator sum{};
      const T *x = query + q.at(n, h, i), *y = key + k.at(n, h / heads_per_key, j);
      for (int64_t d = 0; d < q.dims[3]; ++d) A::accumulate(sum, x[d], y[d]);
      scores[j] = row.masked(row.score(A::finish(sum)), i, j, mask_at[0] + j * mask[3]);
    }
    softmax_row<A>(scores.data(), keys, 1, true);
    for (int64_t d = 0; d < v.dims[3]; ++d) {
      typename A::Accumulator sum{};
      for (int64_t j = 0; j < keys; ++j)
        A::accumulate(sum, scores[j], value[v.at(n, h / heads_per_key, j) + d]);
      result[out.at(n, h, i) + d] = A::finish(sum);
    }
  };
  for_each_index<1>({q.dims[0], q.dims[1], q.dims[2]}, {Sizes{mask[0], mask[1], mask[2]}}, attend);
}

/// The row of the caches for a token.
int64_t rotary_position(const Call& call, int64_t token) {
  if (!call.has(3)) return token;
  const int64_t rows = call.in[1]->dims[0], given = call.in[3]->ints[token];
  const int64_t position = given < 0 ? given + rows : given;
  if (position >= 0 && position < rows) return position;
  throw TypeError("RotaryEmbedding: expected position ids below " + std::to_string(rows) + ", got " +
                  std::to_string(position));
}

template <class A>
void rotary(const Call& call) {
  using T = typename A::T;
  const HeadsView x(call.in[0]->dims, call.node.attr_int("num_heads"));
  const bool is_interleaved = call.node.attr_int("interleaved") != 0;
  const int64_t part = call.node.attr_int("rotary_embedding_dim");
  const int64_t half = (part > 0 ? part : x.dims[3]) / 2;
  const auto &source = call.operand<T>(0), &cosines = call.operand<T>(1), &sines = call.operand<T>(2);
  auto& out = data<T>(call.out[0]);
  out = source;  // copies what is beyond the rotated part
  const auto rotate = [&](int64_t index, const std::array<int64_t, 1>& at) {
    const int64_t token = index / x.dims[2] / x.dims[1] * x.dims[2] + index % x.dims[2];
    const int64_t position = rotary_position(call, token);
    for (int64_t d = 0; d < half; ++d) {
      const int64_t first = at[0] + (is_interleaved ? 2 * d : d);
      const int64_t second = at[0] + (is_interleaved ? 2 * d + 1 : d + half);
      const T cosine = cosines[position * half + d], sine = sines[position * half + d];
      out[first] = A::sub(A::mul(cosine, source[first]), A::mul(sine, source[second]));
      out[second] = A::add(A::mul(sine, source[first]), A::mul(cosine, source[second]));
    }
  };
  for_each_index<1>({x.dims[0], x.dims[1], x.dims[2]}, {Sizes{x.strides[0], x.strides[1], x.strides[2]}},
                    rotate);
}

}  // namespace

template <class A>
std::vector<KernelRow> attention_rows() {
  return {{Op::Attention, attention<A>}, {Op::RotaryEmbedding, rotary<A>}};
}

RLOPT_INSTANTIATE(attention_rows)

}  // namespace rlopt
