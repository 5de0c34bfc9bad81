// SPDX-License-Identifier: Apache-2.0
#pragma once
// Data parallel training: every rank holds the whole model and sees its share of each batch.
//
// The flat gradient buffer is cut into buckets. Every gradient that is settled counts down;
// when a bucket is complete, and all before it are on their way, its all-reduce starts on the
// communication thread while the backward pass goes on. Buckets leave in the same order on every
// rank whatever the order of hooks, so parameters that a rank does not use cannot hang the others.
//
//     Trainer<DDP<>> trainer(ctx, config);             // buckets of 1 and then 25 MiB
//     Trainer<DDP<bucket<1, 8>>> smaller(ctx, config);
//
//   source: Li et al. 2020 (arXiv 2006.15704); bucket sizes as in PyTorch's reducer

#include <skein/train/context.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/strategy.hpp>

#include <cstddef>
#include <memory>
#include <string_view>

namespace skein {

/// How gradients are cut for sending. The first bucket is small so that sending starts early.
template <std::size_t FirstMiB = 1, std::size_t MiB = 25>
struct bucket {
    static constexpr std::size_t first_bytes = FirstMiB << 20;
    static constexpr std::size_t bytes = MiB << 20;
};

namespace train::detail {

class bucket_sender;

/// DDP with its bucket sizes as numbers.
class data_parallel {
public:
    data_parallel(const context& ctx, torch::nn::Module& module, std::size_t first_bytes,
                  std::size_t bytes);
    data_parallel(const data_parallel&) = delete;
    data_parallel& operator=(const data_parallel&) = delete;
    ~data_parallel();

    [[nodiscard]] flat_storage& storage() noexcept { return storage_; }
    void begin_step() { storage_.expect_gradients(); }
    /// Only the last micro-batch of a step communicates; the others add to the flat gradients.
    void begin_micro(bool last) noexcept;
    void finish_backward();
    [[nodiscard]] double squared_norm(double mine) const noexcept { return mine; }
    void publish() noexcept {}
    /// Rank 0's buffers (running statistics) on every rank, before evaluation and saving.
    void sync_buffers();

    [[nodiscard]] std::size_t buckets() const noexcept;
    /// Buckets of the last step whose exchange began before the backward pass had ended.
    [[nodiscard]] std::size_t overlapped() const noexcept { return overlapped_; }

private:
    void broadcast(const at::Tensor& tensor);

    const context* ctx_;
    flat_storage storage_;
    std::shared_ptr<bucket_sender> sender_;
    std::size_t overlapped_ = 0;
};

} // namespace train::detail

/// Gradients are summed over all ranks; parameters stay equal bit for bit on every rank.
///   construction broadcasts rank 0's parameters and buffers, and compares the models' layouts
///   cost   2(N-1)/N of the gradient bytes per rank and step, mostly during the backward pass
///   errors mismatch when the ranks' models differ; peer_lost, timeout, aborted from the transport
template <class Bucket = bucket<>>
class DDP : public train::detail::data_parallel {
public:
    static constexpr std::string_view name = "DDP";

    DDP(const train::context& ctx, torch::nn::Module& module)
        : data_parallel(ctx, module, Bucket::first_bytes, Bucket::bytes) {}
};

static_assert(train::strategy<DDP<>>);

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/ddp.ipp>
#endif
