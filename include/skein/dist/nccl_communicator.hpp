// SPDX-License-Identifier: Apache-2.0
#pragma once
// The communicator over NCCL: buffers of one device, collectives on a stream of its own.
//
// A collective comes after what is on the work stream when it begins; its task ends when the host
// may use the result, and so may what is put on the work stream from then on. Calls never
// block: NCCL's communicator is non-blocking, and this one looks at it between other work of its
// loop. An asynchronous error, a deadline or abort() ends all communicators of the process
// (nccl_domain); a task that fails ends when its stream is idle, so that no buffer is released
// under work.
//
// NCCL does not compare calls: unlike ones hang until the deadline, or give wrong numbers, so each
// is recorded (call_record.hpp) for others to compare. It does not say which rank is missing,
// either. Sums of halves are made in float32, by device_math.

#include <skein/core/time.hpp>
#include <skein/dist/call_record.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/detail/collective_signature.hpp>
#include <skein/dist/detail/nccl_runner.hpp>
#include <skein/dist/nccl_domain.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace skein::dist {

/// Where a communicator over NCCL works.
struct nccl_options {
    int device = 0;
    /// Of the device; null: its default stream. Several communicators may have one.
    cuda_stream work = nullptr;
    /// What errors call the ranks. Empty: 0, 1, ...
    std::vector<int> labels = {};
};

/// One rank's end. Made by connect(); close() has to be awaited before destruction.
class nccl_communicator final : public communicator {
public:
    /// All ranks of the id call it, each on its own device.
    ///   errors  timeout: not all came; not_supported: no driver; those of nccl_error()
    static task<std::unique_ptr<nccl_communicator>> connect(std::shared_ptr<nccl_domain> domain,
                                                            nccl_unique_id id, int rank, int ranks,
                                                            nccl_options where,
                                                            collective_options limits = {});

    [[nodiscard]] int rank() const noexcept override { return rank_; }
    [[nodiscard]] int world_size() const noexcept override { return ranks_; }
    [[nodiscard]] std::string name() const override;
    [[nodiscard]] bool reaches(device where) const noexcept override {
        return where == runner_.where();
    }

    task<void> all_reduce(buffer_view io, reduce_op op) override;
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op) override;
    task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                reduce_op op) override;
    task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                buffer_view out, reduce_op op) override;
    task<void> all_gather(buffer_view in, buffer_view out) override;
    task<void> all_gather_v(buffer_view in, buffer_view out,
                            std::span<const std::size_t> counts) override;
    task<void> broadcast(buffer_view io, int root) override;
    task<void> barrier() override;
    /// Not supported: memory of a device is the allocator's of who computes there.
    task<std::shared_ptr<group_memory>> allocate(std::size_t bytes, memory_kind kind) override;
    task<void> send(buffer_view io, int to) override;
    task<void> recv(buffer_view io, int from) override;
    task<void> close() override;
    /// Ends all communicators of the process. Other processes learn of it by NCCL, by their
    /// deadline or from who brings the ranks together.
    void abort(error why) noexcept override { runner_.abort(why); }
    void set_deadline(time_span limit) override { runner_.set_deadline(limit); }
    void set_tag(collective_tag tag) override { tag_ = tag; }
    [[nodiscard]] std::shared_ptr<const call_record> calls() const override { return calls_; }

private:
    using put_calls = std::function<nccl_result(const nccl_library&, nccl_comm)>;

    nccl_communicator(std::shared_ptr<nccl_domain> domain, int rank, int ranks,
                      const nccl_options& where, collective_options limits);
    [[nodiscard]] static std::string name_of(const nccl_options& where, int rank);

    task<void> run(detail::signature what, detail::nccl_steps how);
    task<void> nothing(detail::signature what);
    void note(detail::signature& what);
    /// The view for the checks that all models share; refuses memory of elsewhere.
    [[nodiscard]] buffer_view own(buffer_view view) const;
    [[nodiscard]] device_math& math(const char* what) const;
    void average(reduce_op op, buffer_view sums) const;
    [[nodiscard]] static nccl_op op_of(reduce_op op) noexcept;
    [[nodiscard]] static bool is_wide(buffer_view io, reduce_op op) noexcept;
    [[nodiscard]] buffer_view part_of(buffer_view io, std::span<const std::size_t> counts,
                                      int rank) const;
    [[nodiscard]] put_calls reduce_parts(buffer_view io, std::vector<std::size_t> counts,
                                         void* own_out, reduce_op op) const;

    detail::nccl_runner runner_;
    const int rank_, ranks_;
    collective_tag tag_;
    std::uint64_t sequence_ = 0;
    const std::shared_ptr<call_record> calls_; // NCCL compares nothing
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/nccl_communicator.ipp>
#endif
