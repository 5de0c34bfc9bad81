// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sum of the squares of numbers that lie in many places, in one order.

#include <skein/torch/torch.hpp>
#include <skein/train/shard_layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

namespace skein::train::detail {

/// Numbers of one row that is cut into parts, summed piece by piece: a piece begins in some part
/// and ends in that or a later one. Sixteen lanes, each a sum of its own, so that the vector unit
/// can work.
struct square_sums {
    static constexpr std::int64_t piece = 1 << 16, lanes = flat_alignment;

    std::vector<const float*> parts;
    std::vector<std::int64_t> starts;    // of the parts, and the end
    std::vector<at::Tensor> on_device{}; // in place of both

    /// The tensors must outlive it.
    explicit square_sums(std::span<const at::Tensor> all) : starts{0} {
        if (!all.empty() && !all.front().device().is_cpu()) {
            on_device.assign(all.begin(), all.end());
            return;
        }
        for (const auto& part : all) {
            parts.push_back(static_cast<const float*>(part.const_data_ptr()));
            starts.push_back(starts.back() + part.numel());
        }
    }

    /// Fetches the row a cache line at a time. Parts lie anywhere, in a store last before first,
    /// and short ones are over before the processor sees that they are read in order: a block of
    /// them is fetched from its last part to its first.
    struct cursor {
        static constexpr std::int64_t block = 1 << 14;
        static constexpr std::int64_t lead = (block + 256) / lanes; // cache lines

        const square_sums& of;
        std::size_t begin, end, part; // of the block, and in it
        std::int64_t at = 0;

        cursor(const square_sums& all, std::size_t first) : of(all) {
            start(first);
            for (std::int64_t i = 0; i < lead; ++i) next();
        }
        void start(std::size_t first) {
            begin = end = first;
            while (end < of.parts.size() && of.starts[end] - of.starts[begin] < block) end += 1;
            part = end - 1;
        }
        void next() {
            if (begin == end) return;
            __builtin_prefetch(of.parts[part] + at, /*write=*/0, /*locality=*/1);
            at += lanes;
            if (at < of.starts[part + 1] - of.starts[part]) return;
            at = 0;
            if (part == begin)
                start(end);
            else
                part -= 1;
        }
    };

    [[nodiscard]] std::size_t part_at(std::int64_t element) const {
        return static_cast<std::size_t>(std::ranges::upper_bound(starts, element) - starts.begin() -
                                        1);
    }

    [[nodiscard]] double of_piece(std::int64_t number, cursor* ahead) const {
        const auto end = std::min((number + 1) * piece, starts.back());
        double lane[lanes] = {};
        auto at = number * piece;
        for (auto p = part_at(at); at < end; ++p) {
            const auto upto = std::min(end, starts[p + 1]);
            add(parts[p] + (at - starts[p]), upto - at, lane, ahead);
            at = upto;
        }
        double sum = 0;
        for (const double part : lane) sum += part;
        return sum;
    }

    [[nodiscard]] double of_all() const {
        if (!on_device.empty()) return by_tensors(on_device);
        std::vector<double> sums(static_cast<std::size_t>((starts.back() + piece - 1) / piece));
        const bool is_short = starts.back() < std::ssize(parts) * cursor::block;
        at::parallel_for(0, static_cast<std::int64_t>(sums.size()), 1,
                         [&](std::int64_t first, std::int64_t last) {
                             std::optional<cursor> ahead;
                             if (is_short) ahead.emplace(*this, part_at(first * piece));
                             for (auto s = first; s < last; ++s)
                                 sums[static_cast<std::size_t>(s)] =
                                     of_piece(s, ahead ? &*ahead : nullptr);
                         });
        double sum = 0;
        for (const double part : sums) sum += part;
        return sum;
    }

    /// By LibTorch's kernels, where the numbers are; one of them comes to the host. A sum in double
    /// makes a copy in double, of so many numbers at a time.
    [[nodiscard]] static double by_tensors(std::span<const at::Tensor> all) {
        constexpr std::int64_t most = std::int64_t{1} << 24;
        const at::NoGradGuard no_grad;
        std::vector<at::Tensor> norms;
        for (const auto& part : all)
            for (std::int64_t at = 0; at < part.numel(); at += most)
                norms.push_back(at::linalg_vector_norm(
                    part.narrow(0, at, std::min(most, part.numel() - at)), 2, std::nullopt,
                    /*keepdim=*/false, at::kDouble));
        if (norms.empty()) return 0.0;
        return at::stack(norms).square().sum().item<double>();
    }

    static void add(const float* x, std::int64_t count, double* lane, cursor* ahead) {
        std::int64_t i = 0;
        for (; i + lanes <= count; i += lanes) {
            if (ahead != nullptr) ahead->next();
            for (std::int64_t k = 0; k < lanes; ++k) {
                const double v = x[i + k];
                lane[k] += v * v;
            }
        }
        for (; i < count; ++i) lane[0] += double(x[i]) * double(x[i]);
    }
};

} // namespace skein::train::detail
