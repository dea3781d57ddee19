// Depthwise convolutions. Included once for each instruction set, behind vectors.h.

/// kPixels output pixels of a row times kVectors vectors of channels. Where kIsInside, all columns that the
/// kernel sees are those of the image.
template <int kPixels, int kVectors, bool kIsInside>
void depthwise_tile(const Job& job, const float* image, int64_t channel, int64_t y, int64_t first,
                    int64_t count, int64_t place) {
  const Convolution& given = *job.given;
  const float* weight = job.packed + given.out_channels + channel;
  const int64_t top = y * given.stride_y - given.pad_y, left = first * given.stride_x - given.pad_x;
  const int64_t step = given.stride_x * given.pixel_stride;
  Vector sums[kPixels][kVectors];
  for (int j = 0; j < kVectors; ++j)
    for (int i = 0; i < kPixels; ++i) sums[i][j] = load(job.packed + channel + j * kVector);
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
      const float* at = row + x * given.pixel_stride;
      for (int i = 0; i < kPixels; ++i, x += given.stride_x, at += step) {
        const float* pixel = at;
        if (!kIsInside && static_cast<uint64_t>(x) >= static_cast<uint64_t>(given.width)) pixel = job.zeros;
        for (int j = 0; j < kVectors; ++j) sums[i][j] += load(pixel + j * kVector) * factor[j];
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    float* const out = job.out + (place + i) * given.out_pixel_stride + channel;
    const float* const summand = job.summand + (place + i) * given.out_channels + channel;
    for (int j = 0; j < kVectors; ++j) {
      Vector sum = sums[i][j];
      if (job.summand != nullptr) sum += load(summand + j * kVector);
      store(out + j * kVector, activate(sum, given.activation, given.low, given.high));
    }
  }
}

/// A row of the output, `kVectors` vectors of channels wide.
template <int kVectors>
void depthwise_row(const Job& job, const float* image, int64_t channel, int64_t y, int64_t place) {
  constexpr int kPixels = 4;
  const Convolution& given = *job.given;
  const int64_t reach = (kPixels - 1) * given.stride_x + (given.kernel_width - 1) * given.dilation_x;
  for (int64_t first = 0; first < given.out_width; first += kPixels) {
    const int64_t left = first * given.stride_x - given.pad_x;
    const int64_t count = std::min<int64_t>(kPixels, given.out_width - first);
    if (left >= 0 && left + reach < given.width)
      depthwise_tile<kPixels, kVectors, true>(job, image, channel, y, first, count, place + first);
    else
      depthwise_tile<kPixels, kVectors, false>(job, image, channel, y, first, count, place + first);
  }
}

/// Calls row(vectors, channel, image, y, place) for the rows of a thread. Channels beyond the last whole
/// vector are computed with some before them, once more.
template <class Row>
void by_rows(const Job& job, int64_t channels, int thread, int num_threads, const Row& row_of) {
  const Convolution& given = *job.given;
  const Share rows = share_of(given.images * given.out_height, thread, num_threads);
  for (int64_t row = rows.first; row < rows.last; ++row) {
    const float* const image = job.in + row / given.out_height * given.image_stride;
    const int64_t y = row % given.out_height, place = row * given.out_width;
    int64_t channel = 0;
    for (; channel + 2 * kVector <= channels; channel += 2 * kVector) row_of(true, channel, image, y, place);
    for (; channel < channels; channel += kVector)
      row_of(false, std::min(channel, channels - kVector), image, y, place);
  }
}

void depthwise(const Job& job, int thread, int num_threads) {
  by_rows(job, job.given->out_channels, thread, num_threads,
          [&](bool is_wide, int64_t channel, const float* image, int64_t y, int64_t place) {
            if (is_wide)
              depthwise_row<2>(job, image, channel, y, place);
            else
              depthwise_row<1>(job, image, channel, y, place);
          });
}
