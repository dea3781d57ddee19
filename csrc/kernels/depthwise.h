// Depthwise convolutions. Included once for each instruction set, behind vectors.h.

/// kPixels output pixels of a row times kVectors vectors of channels.
template <int kPixels, int kVectors>
void depthwise_tile(const Job& job, const float* image, int64_t channel, int64_t y, int64_t first,
                    int64_t count, int64_t place) {
  const Convolution& given = *job.given;
  const float* weight = job.packed + given.out_channels + channel;
  const int64_t top = y * given.stride_y - given.pad_y, left = first * given.stride_x - given.pad_x;
  Vector sums[kPixels][kVectors];
  for (int j = 0; j < kVectors; ++j)
    for (int i = 0; i < kPixels; ++i) sums[i][j] = load(job.packed + channel + j * kVector);
  const float* const zeros = job.zeros;
  for (int64_t ky = 0; ky < given.kernel_height; ++ky) {
    const int64_t in_y = top + ky * given.dilation_y;
    if (in_y < 0 || in_y >= given.height) {
      weight += given.kernel_width * given.out_channels;
      continue;
    }
    const float* const row = image + in_y * given.row_stride + channel;
    for (int64_t kx = 0; kx < given.kernel_width; ++kx, weight += given.out_channels) {
      Vector factor[kVectors];
      for (int j = 0; j < kVectors; ++j) factor[j] = load(weight + j * kVector);
      int64_t x = left + kx * given.dilation_x;
      for (int i = 0; i < kPixels; ++i, x += given.stride_x) {
        const bool is_inside = static_cast<uint64_t>(x) < static_cast<uint64_t>(given.width);
        const float* const pixel = is_inside ? row + x * given.pixel_stride : zeros;
        for (int j = 0; j < kVectors; ++j) sums[i][j] += load(pixel + j * kVector) * factor[j];
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = (place + i) * given.out_channels + channel;
    for (int j = 0; j < kVectors; ++j) {
      Vector sum = sums[i][j];
      if (job.summand != nullptr) sum += load(job.summand + at + j * kVector);
      store(job.out + at + j * kVector, activate(sum, given.activation, given.low, given.high));
    }
  }
}

/// A row of the output, `kVectors` vectors of channels wide.
template <int kVectors>
void depthwise_row(const Job& job, const float* image, int64_t channel, int64_t y, int64_t place) {
  constexpr int kPixels = 4;
  const int64_t width = job.given->out_width;
  for (int64_t first = 0; first < width; first += kPixels) {
    depthwise_tile<kPixels, kVectors>(job, image + 0, channel, y, first,
                                      std::min<int64_t>(kPixels, width - first), place + first);
  }
}

/// Channels beyond the last whole vector are computed with some before them, once more.
void depthwise(const Job& job, int thread, int num_threads) {
  const Convolution& given = *job.given;
  const int64_t channels = given.out_channels;
  const Share rows = share_of(given.images * given.out_height, thread, num_threads);
  for (int64_t row = rows.first; row < rows.last; ++row) {
    const float* const image = job.in + row / given.out_height * given.image_stride;
    const int64_t y = row % given.out_height, place = row * given.out_width;
    int64_t channel = 0;
    for (; channel + 2 * kVector <= channels; channel += 2 * kVector)
      depthwise_row<2>(job, image, channel, y, place);
    for (; channel < channels; channel += kVector)
      depthwise_row<1>(job, image, std::min(channel, channels - kVector), y, place);
  }
}
