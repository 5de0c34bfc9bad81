// SPDX-License-Identifier: Apache-2.0
#pragma once
// A thread of its own with a real loop: where sockets live while another thread computes.
//
//     net::loop_thread io("comm");
//     int n = io.run([&] { return count_peers(network); });    // blocks this thread, not the loop
//     // the destructor stops the loop and joins

#include <skein/core/task.hpp>
#include <skein/net/real_loop.hpp>

#include <string>

namespace skein::net {

/// Stops and joins in the destructor; all tasks started through run() have ended by then.
class loop_thread {
public:
    explicit loop_thread(std::string name);
    ~loop_thread();

    /// Calls f() on the loop's thread; f returns task<T>, which is run to its end there.
    ///   result  T; an exception of the task is rethrown here
    ///   thread  any except the loop's own; blocks the caller
    template <class F>
    auto run(F f);

    [[nodiscard]] real_loop& loop() noexcept;
};

} // namespace skein::net
