// SPDX-License-Identifier: Apache-2.0
#pragma once
// The real world's loop: Asio's io_context behind skein::loop.
//
//     net::real_loop loop;
//     int code = loop.run(app(loop));
//
// One thread runs it (concurrency hint 1). Any Asio object made on context() can be used in its
// tasks with skein::use_task.

#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/time.hpp>

#include <memory>
#include <optional>

namespace skein::net {

namespace detail {
struct asio_context;
}

/// A loop over system time and sockets.
class real_loop final : public loop {
public:
    real_loop();

    /// Lets work that was aborted but not awaited (connections whose last owner let go) end: runs
    /// until nothing has happened for a while. Must not be called while the loop runs.
    ~real_loop() override;

    /// The asio::io_context; for callers that include net/use_task.hpp.
    [[nodiscard]] auto& context() noexcept;

    [[nodiscard]] time_point coarse_now() noexcept override;

protected:
    time_point read_clock() noexcept override;
    void poll(std::optional<time_point> until, bool may_block) override;
    void notify() noexcept override;

private:
    const std::unique_ptr<detail::asio_context> context_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/real_loop.ipp>
#endif
