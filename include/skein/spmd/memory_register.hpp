// SPDX-License-Identifier: Apache-2.0
#pragma once
// A view register in the memory of one process: that of the supervisor at a job's endpoint. It is
// gone with it, and so is the job's coordinator.

#include <skein/core/config.hpp>
#include <skein/core/wait.hpp>
#include <skein/spmd/view_register.hpp>

namespace skein::spmd {

/// Never waits for anybody but in its watches.
class memory_register final : public view_register {
public:
    [[nodiscard]] task<view> read() override;
    [[nodiscard]] task<swap_result> compare_and_swap(std::uint64_t generation, view next) override;
    [[nodiscard]] task<view> watch(std::uint64_t after) override;
    [[nodiscard]] task<coordinator_place> claim(coordinator_place me) override;
    [[nodiscard]] task<coordinator_place> watch_coordinator(coordinator_place known) override;
    [[nodiscard]] task<void> resign() override;

private:
    view newest_;
    coordinator_place coordinator_;
    wait_queue changed_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/memory_register.ipp>
#endif
