// SPDX-License-Identifier: Apache-2.0
#pragma once
// The communicator of one rank: every law holds, nothing is sent.
//
// For programs that run with any number of workers, one included, and as the smallest model.

#include <skein/dist/communicator.hpp>

#include <cstring>
#include <mutex>
#include <optional>

namespace skein::dist {

/// World size 1. send and recv have nobody to talk to and are a bug of the caller.
class stub_communicator {
public:
    [[nodiscard]] int rank() const noexcept { return 0; }
    [[nodiscard]] int world_size() const noexcept { return 1; }
    [[nodiscard]] std::string name() const { return "single"; }

    task<void> all_reduce(buffer_view io, reduce_op) {
        check();
        SKEIN_CHECK(io.type != dtype::u8, "u8 can be copied but not reduced");
        co_return;
    }
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op) { return copy(in, out); }
    task<void> all_gather(buffer_view in, buffer_view out) { return copy(in, out); }
    task<void> all_gather_v(buffer_view in, buffer_view out, std::span<const std::size_t> counts) {
        SKEIN_CHECK(counts.size() == 1 && counts[0] == in.count,
                    "all_gather_v: one count of {} expected", in.count);
        return copy(in, out);
    }
    task<void> broadcast(buffer_view, int root) {
        check();
        SKEIN_CHECK(root == 0, "broadcast from rank {} of 1", root);
        co_return;
    }
    task<void> barrier() {
        check();
        co_return;
    }
    task<void> send(buffer_view, int to) { return nobody(to); }
    task<void> recv(buffer_view, int from) { return nobody(from); }
    task<void> close() { co_return; }

    void abort(error why) noexcept {
        const std::lock_guard lock(guard_);
        if (!aborted_) aborted_ = std::move(why);
    }
    void set_deadline(duration) noexcept {}

private:
    task<void> copy(buffer_view in, buffer_view out) {
        check();
        SKEIN_CHECK(in.count == out.count && in.type == out.type, "{} elements into {}", in.count,
                    out.count);
        if (in.data != out.data && in.count > 0) std::memmove(out.data, in.data, in.bytes());
        co_return;
    }
    static task<void> nobody(int peer) {
        SKEIN_CHECK(false, "send or recv with rank {} in a world of 1", peer);
        co_return;
    }
    void check() {
        const std::lock_guard lock(guard_);
        if (aborted_) throw *aborted_;
    }

    std::mutex guard_;
    std::optional<error> aborted_;
};

} // namespace skein::dist
