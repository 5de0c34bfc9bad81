// SPDX-License-Identifier: Apache-2.0
#pragma once
// Data parallel training: every rank holds the whole model and sees its share of each batch.
//
// The flat gradient buffer is cut into buckets. A hook on every parameter's gradient counts down;
// when a bucket is complete, and all before it are on their way, its all-reduce starts on the
// communication thread while the backward pass goes on. Buckets leave in the same order on every
// rank whatever the order of hooks, so parameters that a rank does not use cannot hang the others.
//
//     Trainer<DDP<>> trainer(ctx, config);             // buckets of 1 and then 25 MiB
//     Trainer<DDP<bucket<1, 8>>> smaller(ctx, config);
//
//   source: Li et al. 2020 (arXiv 2006.15704); bucket sizes as in PyTorch's reducer

#include <skein/dist/comm_thread.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/strategy.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace skein {

/// How gradients are cut for sending. The first bucket is small so that sending starts early.
template <std::size_t FirstMiB = 1, std::size_t MiB = 25>
struct bucket {
    static constexpr std::size_t first_bytes = FirstMiB << 20;
    static constexpr std::size_t bytes = MiB << 20;
};

namespace train::detail {

/// The buckets of one rank and how far each has come. Hooks keep it alive.
class bucket_sender {
public:
    bucket_sender(flat_storage& storage, dist::comm_thread& comm, std::size_t first_bytes,
                  std::size_t bytes)
        : grads_(static_cast<float*>(storage.grads_P().mutable_data_ptr())), comm_(&comm) {
        std::int64_t begin = 0;
        std::size_t members = 0;
        for (const auto& s : storage.segments()) {
            bucket_of_.push_back(buckets_.size());
            names_.push_back(s.name);
            ++members;
            const auto end = s.offset + s.padded;
            const auto limit = buckets_.empty() ? first_bytes : bytes;
            if (static_cast<std::size_t>(end - begin) * sizeof(float) >= limit ||
                bucket_of_.size() == storage.segments().size()) {
                buckets_.push_back({begin, end - begin, members, members, {}});
                begin = end;
                members = 0;
            }
        }
        ready_.assign(bucket_of_.size(), 0);
    }

    /// Before the backward pass whose end completes the gradients.
    void arm() noexcept {
        next_ = 0;
        armed_ = true;
        for (auto& b : buckets_) b.missing = b.members;
        std::fill(ready_.begin(), ready_.end(), 0);
    }
    void disarm() noexcept { armed_ = false; }

    /// The hook of segment i: its gradient is final.
    void ready(std::size_t i) {
        if (!armed_) return;
        if (std::exchange(ready_[i], 1) != 0) // its bucket may be on its way already
            throw error(errc::not_supported,
                        "not supported: a gradient became final twice in one backward pass")
                .with_where(names_[i])
                .with_hint("a custom function runs a backward pass inside backward, over a weight "
                           "that is used outside of it too");
        buckets_[bucket_of_[i]].missing -= 1;
        while (next_ < buckets_.size() && buckets_[next_].missing == 0) send_next();
    }

    /// Sends what no hook completed and waits for all sums.
    void finish() {
        while (next_ < buckets_.size()) send_next();
        armed_ = false;
        for (auto& b : buckets_) b.end.wait();
    }

    [[nodiscard]] std::size_t size() const noexcept { return buckets_.size(); }
    /// Buckets that were on their way before the backward pass ended, in the last step.
    [[nodiscard]] std::size_t sent() const noexcept { return next_; }

private:
    struct part {
        std::int64_t offset, count;
        std::size_t members, missing;
        dist::ticket end;
    };

    void send_next() {
        auto& b = buckets_[next_++];
        const std::span<float> slice(grads_ + b.offset, static_cast<std::size_t>(b.count));
        b.end = comm_->all_reduce(dist::view_of(slice), dist::reduce_op::sum);
    }

    float* grads_;
    dist::comm_thread* comm_;
    std::vector<part> buckets_;
    std::vector<std::size_t> bucket_of_; // by segment
    std::vector<std::string> names_;     // by segment
    std::vector<char> ready_;            // by segment: its hook has fired in this pass
    std::size_t next_ = 0;               // first bucket that has not been sent
    bool armed_ = false;
};

struct gradient_hook : torch::autograd::FunctionPostHook {
    gradient_hook(std::shared_ptr<bucket_sender> sender, std::size_t segment)
        : sender(std::move(sender)), segment(segment) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
        sender->ready(segment);
        return outputs;
    }
    std::shared_ptr<bucket_sender> sender;
    std::size_t segment;
};

} // namespace train::detail

/// Gradients are summed over all ranks; parameters stay equal bit for bit on every rank.
///   construction broadcasts rank 0's parameters and buffers, and compares the models' layouts
///   cost   2(N-1)/N of the gradient bytes per rank and step, mostly during the backward pass
///   errors mismatch when the ranks' models differ; peer_lost, timeout, aborted from the transport
template <class Bucket = bucket<>>
class DDP {
public:
    static constexpr std::string_view name = "DDP";

    DDP(const train::context& ctx, torch::nn::Module& module) : ctx_(&ctx), storage_(module) {
        if (ctx.world_size() == 1) return;
        train::require_same(ctx, storage_.layout_hash(), "the model");
        broadcast(storage_.params_P());
        for (const auto& f : storage_.fixed()) broadcast(f.tensor);

        sender_ = std::make_shared<train::detail::bucket_sender>(
            storage_, *ctx.comm(), Bucket::first_bytes, Bucket::bytes);
        for (std::size_t i = 0; i < storage_.segments().size(); ++i) {
            auto node = torch::autograd::impl::grad_accumulator(storage_.segments()[i].parameter);
            const auto key =
                node->add_post_hook(std::make_unique<train::detail::gradient_hook>(sender_, i));
            hooks_.emplace_back(std::move(node), key);
        }
    }
    DDP(const DDP&) = delete;
    DDP& operator=(const DDP&) = delete;
    ~DDP() {
        if (sender_) { // no exchange may outlive the gradients it works on
            if (std::uncaught_exceptions() > 0) {
                ctx_->comm()->abort(error(errc::aborted, "rank " + std::to_string(ctx_->rank()) +
                                                             " leaves because of an exception"));
            }
            ctx_->comm()->drain();
        }
        for (auto& [node, key] : hooks_) node->del_post_hook(key);
    }

    [[nodiscard]] train::flat_storage& storage() noexcept { return storage_; }
    void begin_step() { storage_.expect_gradients(); }
    /// Only the last micro-batch of a step communicates; the others add to the flat gradients.
    void begin_micro(bool last) noexcept {
        if (!sender_) return;
        last ? sender_->arm() : sender_->disarm();
    }
    void finish_backward() {
        storage_.settle_gradients();
        if (!sender_) return;
        overlapped_ = sender_->sent();
        sender_->finish();
    }
    [[nodiscard]] double squared_norm(double mine) const noexcept { return mine; }
    void publish() noexcept {}
    /// Rank 0's buffers (running statistics) on every rank, before evaluation and saving.
    void sync_buffers() {
        if (!sender_) return;
        for (const auto& f : storage_.fixed())
            if (f.is_buffer) broadcast(f.tensor);
    }

    [[nodiscard]] std::size_t buckets() const noexcept { return sender_ ? sender_->size() : 0; }
    /// Buckets of the last step whose exchange began before the backward pass had ended.
    [[nodiscard]] std::size_t overlapped() const noexcept { return overlapped_; }

private:
    void broadcast(const at::Tensor& tensor) {
        at::NoGradGuard no_grad;
        auto flat = tensor.detach().contiguous();
        const dist::buffer_view bytes{flat.mutable_data_ptr(), flat.nbytes(), dist::dtype::u8};
        if (bytes.count == 0) return;
        ctx_->comm()->broadcast(bytes, 0).wait();
        if (!flat.is_same(tensor) && flat.data_ptr() != tensor.data_ptr())
            tensor.detach().copy_(flat);
    }

    const train::context* ctx_;
    train::flat_storage storage_;
    std::shared_ptr<train::detail::bucket_sender> sender_;
    std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> hooks_;
    std::size_t overlapped_ = 0;
};

static_assert(train::strategy<DDP<>>);

} // namespace skein
