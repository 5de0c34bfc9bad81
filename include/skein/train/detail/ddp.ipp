// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/ddp.hpp>.

#include <skein/core/error.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/collective.hpp>

#include <algorithm>
#include <exception>
#include <span>
#include <string>

namespace skein::train::detail {

/// The buckets of one rank and how far each has come.
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

    /// The gradient of segment i is final.
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

SKEIN_INLINE data_parallel::data_parallel(const context& ctx, torch::nn::Module& module,
                                          std::size_t first_bytes, std::size_t bytes)
    : ctx_(&ctx), storage_(module) {
    if (ctx.world_size() == 1) return;
    require_same(ctx, storage_.layout_hash(), "the model");
    broadcast(storage_.params_P());
    for (const auto& f : storage_.fixed()) broadcast(f.tensor);

    sender_ = std::make_shared<bucket_sender>(storage_, *ctx.comm(), first_bytes, bytes);
    storage_.when_settled([sender = sender_](std::size_t segment) { sender->ready(segment); });
}

SKEIN_INLINE data_parallel::~data_parallel() {
    if (sender_) { // no exchange may outlive the gradients it works on
        if (std::uncaught_exceptions() > 0) {
            ctx_->comm()->abort(error(errc::aborted, "rank " + std::to_string(ctx_->rank()) +
                                                         " leaves because of an exception"));
        }
        ctx_->comm()->drain();
    }
    storage_.when_settled({});
}

SKEIN_INLINE void data_parallel::begin_micro(bool last) noexcept {
    if (!sender_) return;
    last ? sender_->arm() : sender_->disarm();
}

SKEIN_INLINE void data_parallel::finish_backward() {
    storage_.settle_gradients();
    if (!sender_) return;
    overlapped_ = sender_->sent();
    sender_->finish();
}

SKEIN_INLINE std::size_t data_parallel::buckets() const noexcept {
    return sender_ ? sender_->size() : 0;
}

SKEIN_INLINE void data_parallel::sync_buffers() {
    if (!sender_) return;
    for (const auto& f : storage_.fixed())
        if (f.is_buffer) broadcast(f.tensor);
}

SKEIN_INLINE void data_parallel::broadcast(const at::Tensor& tensor) {
    at::NoGradGuard no_grad;
    auto flat = tensor.detach().contiguous();
    const dist::buffer_view bytes{flat.mutable_data_ptr(), flat.nbytes(), dist::dtype::u8};
    if (bytes.count == 0) return;
    ctx_->comm()->broadcast(bytes, 0).wait();
    if (!flat.is_same(tensor) && flat.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(flat);
}

} // namespace skein::train::detail
