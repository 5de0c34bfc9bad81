// SPDX-License-Identifier: Apache-2.0
#pragma once
// N ranks as threads of one process with an all-gather between them, for byte-level train tests.
//
//     run_ranks(3, [](int rank, auto exchange) { ... });    // rethrows the first rank's exception

#include <skein/core/bytes.hpp>

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace skein::test {

/// Rendezvous of n threads; a rank that leaves by an exception of its own would block the others,
/// so bodies must take part in every exchange (as the code under test promises).
class thread_world {
public:
    explicit thread_world(int size) : blobs_(static_cast<std::size_t>(size)) {}

    std::vector<byte_buffer> exchange(int rank, byte_span mine) {
        std::unique_lock lock(mutex_);
        const auto round = round_;
        blobs_[static_cast<std::size_t>(rank)] = to_buffer(mine);
        if (++arrived_ == blobs_.size()) {
            arrived_ = 0;
            ++round_;
            result_ = blobs_;
            ready_.notify_all();
        } else {
            ready_.wait(lock, [&] { return round_ != round; });
        }
        return result_;
    }

private:
    std::mutex mutex_;
    std::condition_variable ready_;
    std::vector<byte_buffer> blobs_, result_;
    std::size_t arrived_ = 0;
    std::uint64_t round_ = 0;
};

using exchange_fn = std::function<std::vector<byte_buffer>(byte_span)>;

inline void run_ranks(int size, const std::function<void(int, exchange_fn)>& body) {
    thread_world world(size);
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
            try {
                body(rank, [&world, rank](byte_span mine) { return world.exchange(rank, mine); });
            } catch (...) {
                errors[static_cast<std::size_t>(rank)] = std::current_exception();
            }
        });
    for (auto& t : threads) t.join();
    for (auto& e : errors)
        if (e) std::rethrow_exception(e);
}

} // namespace skein::test
