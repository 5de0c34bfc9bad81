// SPDX-License-Identifier: Apache-2.0
#pragma once
// The order of modelled work.

#include <skein/core/config.hpp>

#include <utility>

namespace skein::sim::detail {

// A handle is a number that no address of this process has: the stream's index, or the event's.
inline constexpr std::uintptr_t first_stream_handle = 0x100, first_event_handle = 0x800000;

SKEIN_INLINE modelled_streams::modelled_streams(int devices, modelled_memory& memory,
                                                std::uint64_t seed)
    : memory_(memory), random_(seed), stopped_(static_cast<std::size_t>(devices)) {
    for (int d = 0; d < devices; ++d)
        streams_.push_back({.device = d, .clock = clocks_++, .knows = {}, .queue = {}});
}

SKEIN_INLINE modelled_streams::host_thread& modelled_streams::current() const {
    const auto [found, is_new] = hosts_.try_emplace(std::this_thread::get_id());
    if (is_new) found->second.clock = clocks_++;
    return found->second;
}

SKEIN_INLINE bool modelled_streams::set_device(int device) {
    if (device < 0 || static_cast<std::size_t>(device) >= stopped_.size()) return false;
    current().device = device;
    return true;
}

SKEIN_INLINE dist::cuda_stream modelled_streams::create_stream() {
    streams_.push_back({.device = device(), .clock = clocks_++, .knows = {}, .queue = {}});
    return reinterpret_cast<dist::cuda_stream>(first_stream_handle + streams_.size() - 1);
}
SKEIN_INLINE int modelled_streams::index_of(dist::cuda_stream handle) {
    if (handle == nullptr) return device();
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    const std::uintptr_t index = number - first_stream_handle;
    if (number < first_stream_handle || index >= streams_.size()) return -1;
    return at(static_cast<int>(index)).is_open ? static_cast<int>(index) : -1;
}
SKEIN_INLINE bool modelled_streams::destroy_stream(dist::cuda_stream handle) {
    const int index = handle == nullptr ? -1 : index_of(handle);
    if (index < 0) return false;
    at(index).is_open = false; // what is on it still runs
    return true;
}
SKEIN_INLINE dist::cuda_event modelled_streams::create_event() {
    const std::uintptr_t handle = first_event_handle + last_event_++;
    events_[handle].device = device();
    return reinterpret_cast<dist::cuda_event>(handle);
}
SKEIN_INLINE bool modelled_streams::destroy_event(dist::cuda_event handle) {
    return events_.erase(reinterpret_cast<std::uintptr_t>(handle)) == 1;
}

SKEIN_INLINE void modelled_streams::submit(int index, const std::string& what,
                                           const std::vector<touched_bytes>& touches,
                                           std::function<void()> run,
                                           std::shared_ptr<joint_work> with) {
    queue_of& s = at(index);
    s.knows.join(current().knows);
    modelled_work as;
    as.what = what;
    as.device = s.device;
    as.who = s.clock;
    as.tick = s.knows.advance(s.clock);
    as.knows = &s.knows;
    for (const auto& t : touches) memory_.touch(t.at, t.bytes, t.writes, as);
    s.queue.push_back({what, std::move(run), nullptr, nullptr, std::move(with)});
}

SKEIN_INLINE std::shared_ptr<stream_mark> modelled_streams::mark(int index) {
    queue_of& s = at(index);
    s.knows.join(current().knows);
    auto made = std::make_shared<stream_mark>();
    made->knows = s.knows;
    s.queue.push_back({"an event", {}, made, nullptr, {}});
    return made;
}
SKEIN_INLINE bool modelled_streams::record(dist::cuda_event handle, int index) {
    const auto found = events_.find(reinterpret_cast<std::uintptr_t>(handle));
    if (index < 0 || found == events_.end() || found->second.device != at(index).device)
        return false;
    found->second.newest = mark(index);
    return true;
}
SKEIN_INLINE bool modelled_streams::wait(int index, dist::cuda_event handle) {
    std::shared_ptr<stream_mark> of;
    if (index < 0 || !newest(handle, of)) return false;
    if (!of) return true; // never recorded: nothing to wait for
    at(index).knows.join(of->knows);
    at(index).queue.push_back({"a wait for an event", {}, nullptr, std::move(of), {}});
    return true;
}
SKEIN_INLINE bool modelled_streams::newest(dist::cuda_event handle,
                                           std::shared_ptr<stream_mark>& to) const {
    const auto found = events_.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == events_.end()) return false;
    to = found->second.newest;
    return true;
}

SKEIN_INLINE void modelled_streams::host_touches(const touched_bytes& bytes,
                                                 const std::string& what) {
    host_thread& self = current();
    modelled_work as;
    as.what = what;
    as.device = modelled_memory::pinned;
    as.who = self.clock;
    as.tick = self.knows.advance(self.clock);
    as.knows = &self.knows;
    memory_.touch(bytes.at, bytes.bytes, bytes.writes, as);
}

SKEIN_INLINE bool modelled_streams::can_run(const queue_of& s) const {
    if (s.queue.empty() || stopped_[static_cast<std::size_t>(s.device)]) return false;
    const work& head = s.queue.front();
    if (head.waits) return head.waits->is_reached;
    return !head.with || head.with->can_run();
}
SKEIN_INLINE bool modelled_streams::is_head(int index, const joint_work* of) const {
    const queue_of& s = at(index);
    return !stopped_[static_cast<std::size_t>(s.device)] && !s.queue.empty() &&
           s.queue.front().with.get() == of;
}

SKEIN_INLINE bool modelled_streams::run_one() {
    std::vector<std::size_t> able;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
        if (can_run(streams_[i])) able.push_back(i);
    }
    if (able.empty()) return false;
    queue_of& s = streams_[able[static_cast<std::size_t>(random_.below(able.size()))]];
    if (s.queue.front().with) { // it takes itself away, and its partners
        const auto joint = s.queue.front().with;
        joint->run();
        return true;
    }
    const work head = std::move(s.queue.front());
    s.queue.pop_front();
    if (head.reaches) head.reaches->is_reached = true;
    if (head.run) head.run();
    return true;
}

SKEIN_INLINE std::size_t modelled_streams::pending() const {
    std::size_t n = 0;
    for (const queue_of& s : streams_) n += s.queue.size();
    return n;
}

} // namespace skein::sim::detail
