// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams and events of modelled devices: work in order on each stream, any legal order between
// them.

#include <skein/core/random.hpp>
#include <skein/dist/cuda_runtime.hpp>
#include <skein/sim/detail/modelled_memory.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace skein::sim::detail {

using thread_number = decltype(std::this_thread::get_id());

/// What work of a collective waits for, and does, together with other streams.
class joint_work {
public:
    virtual ~joint_work() = default;
    [[nodiscard]] virtual bool can_run() = 0;
    /// Runs on this stream and takes the others' parts away from theirs.
    virtual void run() = 0;
};

/// A point of a stream; an event's record.
struct stream_mark {
    bool is_reached = false;
    vector_clock knows;
};

/// A range of memory that work touches.
struct touched_bytes {
    const void* at = nullptr;
    std::size_t bytes = 0;
    bool writes = false;
};

/// The queues of all devices, and who runs next. One lock around all of it is the owner's.
class modelled_streams {
public:
    modelled_streams(int devices, modelled_memory& memory, std::uint64_t seed);

    [[nodiscard]] int device() const { return current().device; }
    bool set_device(int device);

    [[nodiscard]] dist::cuda_stream create_stream();
    bool destroy_stream(dist::cuda_stream stream);
    [[nodiscard]] dist::cuda_event create_event();
    bool destroy_event(dist::cuda_event event);

    /// Negative: no such stream. Null is the current device's own.
    [[nodiscard]] int index_of(dist::cuda_stream stream);
    [[nodiscard]] int device_of(int stream) const { return at(stream).device; }

    /// Puts work on a stream: its touches are checked here, it runs later.
    void submit(int stream, const std::string& what, const std::vector<touched_bytes>& touches,
                std::function<void()> run, std::shared_ptr<joint_work> with = {});
    [[nodiscard]] std::shared_ptr<stream_mark> mark(int stream);
    /// False: no such event or stream, or they are of different devices.
    bool record(dist::cuda_event event, int stream);
    bool wait(int stream, dist::cuda_event event);
    /// The event's newest record; null: none. False: no such event.
    bool newest(dist::cuda_event event, std::shared_ptr<stream_mark>& to) const;
    /// The host has seen that a mark was reached.
    void host_learns(const stream_mark& mark) { current().knows.join(mark.knows); }
    void host_touches(const touched_bytes& bytes, const std::string& what);
    [[nodiscard]] const vector_clock& host_knows() { return current().knows; }

    /// Runs one piece of work that may run. False: there is none.
    bool run_one();
    [[nodiscard]] bool is_head(int stream, const joint_work* of) const;
    void pop(int stream) { at(stream).queue.pop_front(); }
    [[nodiscard]] bool is_idle(int stream) const { return at(stream).queue.empty(); }
    [[nodiscard]] std::size_t pending() const;
    [[nodiscard]] int count() const { return static_cast<int>(streams_.size()); }
    /// Nothing of this device runs any more, or again.
    void stop(int device, bool stopped) { stopped_[static_cast<std::size_t>(device)] = stopped; }
    [[nodiscard]] seeded_random& random() noexcept { return random_; }

private:
    struct work {
        std::string what;
        std::function<void()> run;
        std::shared_ptr<stream_mark> reaches, waits;
        std::shared_ptr<joint_work> with;
    };
    struct queue_of {
        int device = 0;
        std::size_t clock = 0; // whose count it is
        bool is_open = true;
        vector_clock knows;
        std::deque<work> queue;
    };
    struct event_of {
        int device = 0;
        std::shared_ptr<stream_mark> newest;
    };
    struct host_thread {
        int device = 0;
        std::size_t clock = 0;
        vector_clock knows;
    };
    [[nodiscard]] const queue_of& at(int index) const {
        return streams_[static_cast<std::size_t>(index)];
    }
    [[nodiscard]] queue_of& at(int index) { return streams_[static_cast<std::size_t>(index)]; }
    host_thread& current() const;
    [[nodiscard]] bool can_run(const queue_of& s) const;

    modelled_memory& memory_;
    seeded_random random_;
    mutable std::size_t clocks_ = 0;
    std::deque<queue_of> streams_; // the first ones are the devices' own
    std::vector<bool> stopped_;
    std::map<std::uintptr_t, event_of> events_;
    std::uintptr_t last_event_ = 0;
    mutable std::map<thread_number, host_thread> hosts_;
};

} // namespace skein::sim::detail

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/modelled_streams.ipp>
#endif
