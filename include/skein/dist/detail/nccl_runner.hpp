// SPDX-License-Identifier: Apache-2.0
#pragma once
// One communicator of NCCL with its stream: how an operation passes, ends, and fails.
//
// The pieces of an operation are put on the stream one behind the other, between an event of the
// work stream before it and one behind it, which the work stream waits for when it is reached.

#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/dist/buffer.hpp>
#include <skein/dist/nccl_domain.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace skein::dist::detail {

/// The pieces of one operation.
struct nccl_steps {
    std::function<void()> before; ///< may be empty, as `after`
    std::function<nccl_result(const nccl_library&, nccl_comm)> calls;
    std::function<void()> after;
    bool is_group = false; ///< the calls are one
};

/// Of one rank. All but abort() on its loop's thread, one operation at a time; after an error every
/// later one throws it.
class nccl_runner {
public:
    /// who   for errors: "rank 3 on cuda:1"
    /// work  a stream of the device; null: its default one
    nccl_runner(std::shared_ptr<nccl_domain> domain, std::string who, int device, cuda_stream work,
                duration deadline);
    nccl_runner(const nccl_runner&) = delete;
    nccl_runner& operator=(const nccl_runner&) = delete;
    ~nccl_runner();

    /// Before anything else; all ranks of the id do. After an error close() has to be awaited.
    task<void> join(nccl_unique_id id, int rank, int ranks);
    /// Ends when the host may use the result, or, with an error, when the stream is idle.
    task<void> run(std::string what, nccl_steps how);
    /// An operation that has nothing to do.
    task<void> nothing();
    /// Orderly, unless it has failed. Releases what it has on the device.
    task<void> close();
    /// Any thread.
    void abort(const error& why) noexcept { domain_->abort_all(why); }

    void set_deadline(duration limit) noexcept { deadline_ = limit; }
    [[nodiscard]] cuda_stream stream() const noexcept { return stream_; }
    [[nodiscard]] const nccl_domain& domain() const noexcept { return *domain_; }
    [[nodiscard]] device where() const noexcept {
        return device::cuda(static_cast<std::uint8_t>(device_));
    }
    /// float32 on the device, for one operation.
    [[nodiscard]] buffer_view scratch(std::size_t elements);

private:
    task<void> run_checked(std::string what, time_point until, nccl_steps how);
    task<void> settled(std::string what, time_point until);
    task<void> reached(std::string what, time_point until);
    task<void> idle();
    void begin(const nccl_steps& how);
    void put(const std::string& what, const nccl_steps& how);
    void end(const nccl_steps& how);
    [[noreturn]] void give_up(error why);
    void require(nccl_result outcome, const std::string& what);
    bool look(const std::string& what, time_point until);
    [[nodiscard]] error too_late(const std::string& what) const;
    [[nodiscard]] time_point limit() const;
    void use_device() const;
    void release() noexcept;

    std::shared_ptr<nccl_domain> domain_;
    std::shared_ptr<nccl_domain::member> member_;
    const std::string who_;
    const int device_;
    const cuda_stream work_;
    duration deadline_;
    cuda_stream stream_ = nullptr;
    cuda_event ready_ = nullptr, done_ = nullptr;
    void* scratch_ = nullptr;
    std::size_t scratch_bytes_ = 0;
    bool is_closed_ = false;
};

} // namespace skein::dist::detail

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/nccl_runner.ipp>
#endif
