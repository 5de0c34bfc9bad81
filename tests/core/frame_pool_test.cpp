// SPDX-License-Identifier: Apache-2.0
#include <skein/core/frame_pool.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstring>
#include <set>
#include <thread>
#include <vector>

using skein::detail::frame_pool;

TEST_CASE("frames of every size can be written to and given back in any order") {
    std::vector<std::pair<void*, std::size_t>> frames;
    for (std::size_t bytes = 1; bytes < 5000; bytes += 37) {
        void* p = frame_pool::allocate(bytes);
        std::memset(p, 0x5A, bytes);
        frames.emplace_back(p, bytes);
    }
    std::set<void*> distinct;
    for (const auto& [p, bytes] : frames) distinct.insert(p);
    CHECK(distinct.size() == frames.size());
    for (std::size_t i = 0; i < frames.size(); i += 2)
        frame_pool::release(frames[i].first, frames[i].second);
    for (std::size_t i = 1; i < frames.size(); i += 2)
        frame_pool::release(frames[i].first, frames[i].second);
}

#if SKEIN_FRAME_POOL
TEST_CASE("a frame that was given back is used again") {
    void* first = frame_pool::allocate(200);
    frame_pool::release(first, 200);
    void* again = frame_pool::allocate(210); // the same class
    CHECK(again == first);
    frame_pool::release(again, 210);
}
#endif

TEST_CASE("a frame may be given back on another thread, and a thread's frames end with it") {
    void* from_here = frame_pool::allocate(300);
    std::jthread other([&] {
        frame_pool::release(from_here, 300);
        void* own = frame_pool::allocate(300);
        std::memset(own, 1, 300);
        frame_pool::release(own, 300);
    });
}

#if SKEIN_FRAME_POOL
TEST_CASE("a thread keeps none of the frames that another one made") {
    std::vector<void*> made;
    for (int i = 0; i < 100; ++i) made.push_back(frame_pool::allocate(500));
    std::size_t kept = 1;
    std::jthread other([&] {
        for (void* p : made) frame_pool::release(p, 500);
        kept = frame_pool::kept(500);
    });
    other.join();
    CHECK(kept == 0);
}

TEST_CASE("a thread keeps a bounded number of its free frames") {
    std::size_t kept = 0;
    std::jthread other([&] {
        std::vector<void*> made;
        for (std::size_t i = 0; i < 3 * frame_pool::most_kept; ++i)
            made.push_back(frame_pool::allocate(500));
        for (void* p : made) frame_pool::release(p, 500);
        kept = frame_pool::kept(500);
    });
    other.join();
    CHECK(kept == frame_pool::most_kept);
}

TEST_CASE("frames of which each byte was written are known to their thread") {
    for (std::size_t bytes = 1; bytes <= 2100; ++bytes) {
        void* p = frame_pool::allocate(bytes);
        std::memset(p, 0xFF, bytes);
        frame_pool::release(p, bytes);
        void* again = frame_pool::allocate(bytes);
        if (bytes <= 2040 && again != p) FAIL(bytes);
        frame_pool::release(again, bytes);
    }
}
#endif
