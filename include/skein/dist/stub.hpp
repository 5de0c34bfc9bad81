// SPDX-License-Identifier: Apache-2.0
#pragma once
// The communicator of one rank: every law holds, nothing is sent.
//
// For programs that run with any number of workers, one included, and as the smallest model.

#include <skein/dist/communicator.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace skein::dist {

/// World size 1. send and recv have nobody to talk to and are a bug of the caller.
class stub_communicator final : public communicator {
public:
    [[nodiscard]] int rank() const noexcept override { return 0; }
    [[nodiscard]] int world_size() const noexcept override { return 1; }
    [[nodiscard]] std::string name() const override { return "single"; }

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
    task<std::shared_ptr<group_memory>> allocate(std::size_t bytes, memory_kind kind) override;
    task<void> send(buffer_view io, int to) override;
    task<void> recv(buffer_view io, int from) override;
    task<void> close() override;
    void abort(error why) noexcept override;
    void set_deadline(time_span) noexcept override {}
    void set_tag(collective_tag) noexcept override {}

private:
    task<void> copy(buffer_view in, buffer_view out);
    void check();

    std::mutex guard_;
    std::optional<error> aborted_;
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/stub.ipp>
#endif
