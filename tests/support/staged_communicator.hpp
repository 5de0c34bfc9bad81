// SPDX-License-Identifier: Apache-2.0
#pragma once
// A communicator for tests that passes each call on, writes it down, and may carry the buffers through
// the memory of a device: so strategies, whose buffers are the host's, call one that works there.

#include <skein/dist/call_record.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/cuda_runtime.hpp>

#include "device_buffers.hpp"

#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::test {

/// What a rank has called, one line each. Any thread.
class call_list {
public:
    void add(std::string line) {
        const std::lock_guard lock(guard_);
        lines_.push_back(std::move(line));
    }
    [[nodiscard]] std::vector<std::string> lines() const {
        const std::lock_guard lock(guard_);
        return lines_;
    }

private:
    mutable std::mutex guard_;
    std::vector<std::string> lines_;
};

/// Memory that it gives is each rank's own, so that strategies do the same over every model.
class staged_communicator final : public dist::communicator {
public:
    using buffer_view = dist::buffer_view;
    using counts_span = std::span<const std::size_t>;

    /// cuda: of the device that the inner one works on; none: it takes the host's buffers. work: the
    /// inner one's work stream, which is given over with it. words_stay: what is not float32 stays
    /// on the host, as the row of a step and rank 0's words do.
    staged_communicator(std::unique_ptr<dist::communicator> inner, call_list& calls,
                        std::optional<dist::cuda_runtime> cuda = {}, int device = 0,
                        dist::cuda_stream work = nullptr, bool words_stay = false)
        : inner_(std::move(inner)), calls_(&calls), cuda_(std::move(cuda)), device_(device),
          work_(work), words_stay_(words_stay),
          record_(std::make_shared<dist::call_record>("staged")) {}

    ~staged_communicator() override {
        inner_.reset();
        if (work_ != nullptr) (void)cuda_->stream_destroy(work_);
    }

    [[nodiscard]] int rank() const noexcept override { return inner_->rank(); }
    [[nodiscard]] int world_size() const noexcept override { return inner_->world_size(); }
    [[nodiscard]] std::string name() const override { return "staged " + inner_->name(); }

    task<void> all_reduce(buffer_view io, dist::reduce_op op) override {
        note("all_reduce", io, fmt::format("{}", to_string(op)));
        place there(*this, io);
        auto work = inner_->all_reduce(there.view(), op);
        co_await std::move(work);
        there.take(io);
    }
    task<void> reduce_scatter(buffer_view in, buffer_view out, dist::reduce_op op) override {
        note("reduce_scatter", in, fmt::format("{}", to_string(op)));
        place from(*this, in), to(*this, out);
        auto work = inner_->reduce_scatter(from.view(), to.view(), op);
        co_await std::move(work);
        to.take(out);
    }
    task<void> reduce_scatter_v(buffer_view io, counts_span counts, dist::reduce_op op) override {
        note("reduce_scatter_v", io, fmt::format("{}{}", to_string(op), text(counts)));
        place there(*this, io);
        auto work = inner_->reduce_scatter_v(there.view(), counts, op);
        co_await std::move(work);
        there.take(io);
    }
    task<void> reduce_scatter_v(buffer_view io, counts_span counts, buffer_view out,
                                dist::reduce_op op) override {
        note("reduce_scatter_v into f32", io, fmt::format("{}{}", to_string(op), text(counts)));
        place there(*this, io), to(*this, out);
        auto work = inner_->reduce_scatter_v(there.view(), counts, to.view(), op);
        co_await std::move(work);
        to.take(out);
    }
    task<void> all_gather(buffer_view in, buffer_view out) override {
        note("all_gather", out, "");
        place from(*this, in), to(*this, out);
        auto work = inner_->all_gather(from.view(), to.view());
        co_await std::move(work);
        to.take(out);
    }
    task<void> all_gather_v(buffer_view in, buffer_view out, counts_span counts) override {
        note("all_gather_v", out, text(counts));
        place from(*this, in), to(*this, out);
        auto work = inner_->all_gather_v(from.view(), to.view(), counts);
        co_await std::move(work);
        to.take(out);
    }
    task<void> broadcast(buffer_view io, int root) override {
        note("broadcast", io, fmt::format("root {}", root));
        place there(*this, io);
        auto work = inner_->broadcast(there.view(), root);
        co_await std::move(work);
        there.take(io);
    }
    task<void> barrier() override {
        calls_->add("barrier");
        return inner_->barrier();
    }
    task<std::shared_ptr<dist::group_memory>> allocate(std::size_t bytes,
                                                       dist::memory_kind kind) override {
        calls_->add(fmt::format("allocate {}", bytes));
        co_return dist::group_memory::alone(bytes, kind, /*everywhere=*/false);
    }
    task<void> send(buffer_view io, int to) override {
        place there(*this, io);
        auto work = inner_->send(there.view(), to);
        co_await std::move(work);
    }
    task<void> recv(buffer_view io, int from) override {
        place there(*this, io);
        auto work = inner_->recv(there.view(), from);
        co_await std::move(work);
        there.take(io);
    }
    task<void> close() override { return inner_->close(); }
    void abort(error why) noexcept override { inner_->abort(std::move(why)); }
    void set_deadline(time_span limit) override { inner_->set_deadline(limit); }
    void set_tag(dist::collective_tag tag) override {
        tag_ = tag;
        inner_->set_tag(tag);
    }
    /// There is always one, so that rows have the same numbers over every model.
    [[nodiscard]] std::shared_ptr<const dist::call_record> calls() const override {
        auto of_inner = inner_->calls();
        return of_inner ? of_inner : record_;
    }

private:
    /// A buffer of the host where the inner one can work on it.
    class place {
    public:
        place(const staged_communicator& of, buffer_view host) : view_(host) {
            if (!of.cuda_ || (of.words_stay_ && host.type != dist::dtype::f32)) return;
            dist::cuda_check(*of.cuda_, of.cuda_->set_device(of.device_), "a device current");
            const std::vector<std::byte> bytes(host.begin(), host.begin() + host.bytes());
            there_ = std::make_unique<device_vector<std::byte>>(*of.cuda_, of.work_, bytes);
            view_ = there_->view();
            view_.type = host.type;
            view_.count = host.count;
        }
        [[nodiscard]] buffer_view view() const noexcept { return view_; }
        void take(buffer_view host) {
            if (!there_ || host.bytes() == 0) return;
            const auto bytes = there_->read();
            std::memcpy(host.begin(), bytes.data(), bytes.size());
        }

    private:
        buffer_view view_;
        std::unique_ptr<device_vector<std::byte>> there_;
    };

    void note(const char* what, buffer_view of, const std::string& more) const {
        calls_->add(fmt::format("{} {} x {} {}, {}", what, to_string(of.type), of.count, more,
                                to_string(tag_)));
    }
    [[nodiscard]] static std::string text(counts_span counts) {
        std::string all;
        for (const auto count : counts) all += fmt::format(" {}", count);
        return all;
    }

    std::unique_ptr<dist::communicator> inner_;
    call_list* calls_;
    std::optional<dist::cuda_runtime> cuda_;
    int device_;
    dist::cuda_stream work_;
    bool words_stay_;
    std::shared_ptr<const dist::call_record> record_; // of nothing
    dist::collective_tag tag_;
};

} // namespace skein::test
