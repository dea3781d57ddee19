// Pools. Included once for each instruction set, behind depthwise.h.

/// The pixels from `first` on, of `count` in a row or column, that lie in an image of that size.
struct Inside {
  int64_t begin, end;  // numbers of taps

  Inside(int64_t first, int64_t count, int64_t step, int64_t size)
      : begin(first < 0 ? (-first + step - 1) / step : 0),
        end(first >= size ? 0 : std::min(count, (size - first + step - 1) / step)) {}
  int64_t count() const { return std::max<int64_t>(end - begin, 0); }
};

template <int kVectors>
void pool_row(const Job& job, const float* image, int64_t channel, int64_t y, int64_t place) {
  const Convolution& given = *job.given;
  const int64_t top = y * given.stride_y - given.pad_y;
  const Inside rows(top, given.kernel_height, given.dilation_y, given.height);
  const bool is_max = job.pool == Pool::kMax;
  const float start = is_max ? -std::numeric_limits<float>::infinity() : 0.0F;
  for (int64_t out_x = 0; out_x < given.out_width; ++out_x) {
    const int64_t left = out_x * given.stride_x - given.pad_x;
    const Inside columns(left, given.kernel_width, given.dilation_x, given.width);
    Vector found[kVectors];
    for (int j = 0; j < kVectors; ++j) found[j] = Vector{} + start;
    for (int64_t ky = rows.begin; ky < rows.end; ++ky) {
      const float* const row = image + (top + ky * given.dilation_y) * given.row_stride + channel;
      for (int64_t kx = columns.begin; kx < columns.end; ++kx) {
        const float* const pixel = row + (left + kx * given.dilation_x) * given.pixel_stride;
        for (int j = 0; j < kVectors; ++j) {
          const Vector value = load(pixel + j * kVector);
          // What differs from itself is no number, and nothing is greater than it.
          found[j] = is_max ? ((value > found[j]) | (value != value) ? value : found[j]) : found[j] + value;
        }
      }
    }
    if (!is_max) {
      // The window counts as far as the padding reaches.
      const int64_t height = std::min(given.kernel_height, given.height + given.pad_y - top);
      const int64_t width = std::min(given.kernel_width, given.width + given.pad_x - left);
      const int64_t count = job.pool == Pool::kMean ? height * width : rows.count() * columns.count();
      for (int j = 0; j < kVectors; ++j) found[j] = found[j] / static_cast<float>(count);
    }
    float* const out = job.out + (place + out_x) * given.out_pixel_stride + channel;
    for (int j = 0; j < kVectors; ++j) store(out + j * kVector, found[j]);
  }
}

void pool(const Job& job, int thread, int num_threads) {
  by_rows(job, job.given->channels, thread, num_threads,
          [&](bool is_wide, int64_t channel, const float* image, int64_t y, int64_t place) {
            if (is_wide)
              pool_row<2>(job, image, channel, y, place);
            else
              pool_row<1>(job, image, channel, y, place);
          });
}
