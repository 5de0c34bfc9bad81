// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tables of a model: each entry takes the lock, and asks the part that knows.

#include <skein/dist/half.hpp>
#include <skein/dist/reduce.hpp>
#include <skein/sim/detail/device_model.ipp>

#include <cstring>
#include <utility>

#include <fmt/core.h>

namespace skein::sim {

namespace detail {

SKEIN_INLINE const char* cuda_words(dist::cuda_result outcome) {
    using dist::cuda_result;
    switch (outcome) {
    case cuda_result::success: return "no error";
    case cuda_result::invalid_value: return "invalid argument";
    case cuda_result::out_of_memory: return "out of memory";
    case cuda_result::insufficient_driver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cuda_result::no_device: return "no CUDA-capable device is detected";
    case cuda_result::invalid_device: return "invalid device ordinal";
    case cuda_result::invalid_handle: return "invalid resource handle";
    case cuda_result::not_ready: return "device not ready";
    case cuda_result::launch_failure: return "unspecified launch failure";
    }
    return "unknown error";
}

SKEIN_INLINE const char* nccl_words(dist::nccl_result outcome) {
    using dist::nccl_result;
    switch (outcome) {
    case nccl_result::success: return "no error";
    case nccl_result::unhandled_cuda_error: return "unhandled cuda error";
    case nccl_result::system_error: return "unhandled system error";
    case nccl_result::internal_error: return "internal error";
    case nccl_result::invalid_argument: return "invalid argument";
    case nccl_result::invalid_usage: return "invalid usage";
    case nccl_result::remote_error: return "remote process exited or there was a network error";
    case nccl_result::in_progress: return "NCCL operation in progress";
    case nccl_result::timeout: return "NCCL operation timed out";
    }
    return "unknown result code";
}

[[nodiscard]] constexpr dist::cuda_result handle_is(bool right) {
    return right ? dist::cuda_result::success : dist::cuda_result::invalid_handle;
}

/// Division and conversion as kernels of a model.
class modelled_math final : public dist::device_math {
public:
    explicit modelled_math(
        std::function<void(dist::cuda_stream, const char*, const std::vector<device_bytes>&,
                           std::function<void()>)>
            launch)
        : launch_(std::move(launch)) {}

    void divide(dist::cuda_stream on, dist::buffer_view data, int by) override {
        launch_(on, "a division", {{data.data, data.bytes(), true}}, [data, by] {
            switch (data.type) {
            case dist::dtype::f32: return divide_each<float>(data, by);
            case dist::dtype::f64: return divide_each<double>(data, by);
            case dist::dtype::i64: return divide_each<std::int64_t>(data, by);
            case dist::dtype::bf16:
                return each_of<dist::bf16_t>(data, [by](dist::bf16_t x) {
                    return dist::to_bf16(dist::to_float(x) / static_cast<float>(by));
                });
            case dist::dtype::f16:
                return each_of<dist::f16_t>(data, [by](dist::f16_t x) {
                    return dist::to_f16(dist::to_float(x) / static_cast<float>(by));
                });
            case dist::dtype::u8: return; // opaque
            }
        });
    }
    void convert(dist::cuda_stream on, dist::buffer_view to, dist::buffer_view from) override {
        launch_(on, "a conversion", {{from.data, from.bytes(), false}, {to.data, to.bytes(), true}},
                [to, from] {
                    const void* const source[] = {from.data};
                    dist::reduce(to.data, to.type, source, from.count, from.type,
                                 dist::reduce_op::sum, 1);
                });
    }

private:
    template <class T, class F>
    static void each_of(dist::buffer_view data, F change) {
        auto* const begin = static_cast<T*>(data.data);
        for (std::size_t i = 0; i < data.count; ++i) begin[i] = change(begin[i]);
    }
    template <class T>
    static void divide_each(dist::buffer_view data, int by) {
        each_of<T>(data, [by](T x) { return static_cast<T>(x / static_cast<T>(by)); });
    }

    std::function<void(dist::cuda_stream, const char*, const std::vector<device_bytes>&,
                       std::function<void()>)>
        launch_;
};

} // namespace detail

SKEIN_INLINE std::unique_ptr<dist::device_math> device_model::math() const {
    return std::make_unique<detail::modelled_math>(
        [s = state_](dist::cuda_stream on, const char* what, const std::vector<device_bytes>& of,
                     std::function<void()> work) {
            const std::lock_guard lock(s->guard);
            (void)s->submit(on, what, of, std::move(work));
        });
}

namespace detail {

// The entries by subject; each is a closure over the state.

template <class State>
void fill_device_entries(dist::cuda_runtime& t, const std::shared_ptr<State>& s) {
    using dist::cuda_result;
    t.runtime_version = [](int* to) { return *to = 13020, cuda_result::success; };
    t.driver_version = t.runtime_version;
    t.device_count = [s](int* to) {
        *to = s->options.devices;
        return *to > 0 ? cuda_result::success : cuda_result::no_device;
    };
    t.get_device = [s](int* to) {
        const std::lock_guard lock(s->guard);
        *to = s->streams.device();
        return cuda_result::success;
    };
    t.set_device = [s](int device) {
        const std::lock_guard lock(s->guard);
        return s->streams.set_device(device) ? cuda_result::success : cuda_result::invalid_device;
    };
    t.device_synchronize = [s] {
        std::unique_lock lock(s->guard);
        const int device = s->streams.device();
        for (int i = 0; i < s->streams.count(); ++i) {
            if (s->streams.device_of(i) != device) continue;
            const auto mark = s->streams.mark(i);
            if (!s->drive(lock, [&] { return mark->is_reached; }))
                return cuda_result::launch_failure;
            s->streams.host_learns(*mark);
        }
        return cuda_result::success;
    };
    t.error_text = &cuda_words;
    t.last_error = [] { return cuda_result::success; };
    t.memory_info = [s](std::size_t* free, std::size_t* total) {
        const std::lock_guard lock(s->guard);
        *free = s->memory.free_bytes(s->streams.device());
        *total = s->memory.total_bytes();
        return cuda_result::success;
    };
}

template <class State>
void fill_memory_entries(dist::cuda_runtime& t, const std::shared_ptr<State>& s) {
    using dist::cuda_result;
    t.allocate = [s](void** to, std::size_t bytes) {
        const std::lock_guard lock(s->guard);
        *to = s->memory.allocate(s->streams.device(), bytes);
        return *to != nullptr ? cuda_result::success : cuda_result::out_of_memory;
    };
    t.allocate_host = [s](void** to, std::size_t bytes, unsigned) {
        const std::lock_guard lock(s->guard);
        *to = s->memory.allocate(modelled_memory::pinned, bytes);
        return cuda_result::success;
    };
    const auto release = [s](void* at, bool is_pinned) {
        const std::lock_guard lock(s->guard);
        if (at == nullptr) return cuda_result::success;
        const bool was_there = s->memory.release(at, is_pinned, s->streams.host_knows());
        return was_there ? cuda_result::success : cuda_result::invalid_value;
    };
    t.release = [release](void* at) { return release(at, false); };
    t.release_host = [release](void* at) { return release(at, true); };
    t.copy_async = [s](void* to, const void* from, std::size_t bytes, dist::cuda_copy,
                       dist::cuda_stream on) {
        const std::lock_guard lock(s->guard);
        return handle_is(s->submit(on, "a copy", {{from, bytes, false}, {to, bytes, true}},
                                   [=] { std::memmove(to, from, bytes); }));
    };
    t.set_async = [s](void* to, int value, std::size_t bytes, dist::cuda_stream on) {
        const std::lock_guard lock(s->guard);
        return handle_is(
            s->submit(on, "a fill", {{to, bytes, true}}, [=] { std::memset(to, value, bytes); }));
    };
}

template <class State>
void fill_stream_entries(dist::cuda_runtime& t, const std::shared_ptr<State>& s) {
    using dist::cuda_result;
    t.stream_create = [s](dist::cuda_stream* to, unsigned flags) {
        const std::lock_guard lock(s->guard);
        if (flags != dist::cuda_stream_non_blocking)
            s->memory.complain("a stream that waits for the default stream, which is not modelled");
        *to = s->streams.create_stream();
        return cuda_result::success;
    };
    t.stream_destroy = [s](dist::cuda_stream of) {
        const std::lock_guard lock(s->guard);
        return handle_is(s->streams.destroy_stream(of));
    };
    t.stream_query = [s](dist::cuda_stream of) {
        const std::lock_guard lock(s->guard);
        const int index = s->streams.index_of(of);
        if (index < 0) return cuda_result::invalid_handle;
        s->run_a_little();
        if (!s->streams.is_idle(index)) return cuda_result::not_ready;
        s->streams.host_learns(*s->streams.mark(index));
        return cuda_result::success;
    };
    t.stream_synchronize = [s](dist::cuda_stream of) {
        std::unique_lock lock(s->guard);
        const int index = s->streams.index_of(of);
        if (index < 0) return cuda_result::invalid_handle;
        const auto mark = s->streams.mark(index);
        if (!s->drive(lock, [&] { return mark->is_reached; })) return cuda_result::launch_failure;
        s->streams.host_learns(*mark);
        return cuda_result::success;
    };
    t.stream_wait_event = [s](dist::cuda_stream of, dist::cuda_event event, unsigned) {
        const std::lock_guard lock(s->guard);
        const bool right = s->streams.wait(s->streams.index_of(of), event);
        s->changed();
        return handle_is(right);
    };
}

template <class State>
void fill_event_entries(dist::cuda_runtime& t, const std::shared_ptr<State>& s) {
    using dist::cuda_result;
    t.event_create = [s](dist::cuda_event* to, unsigned) {
        const std::lock_guard lock(s->guard);
        *to = s->streams.create_event();
        return cuda_result::success;
    };
    t.event_destroy = [s](dist::cuda_event event) {
        const std::lock_guard lock(s->guard);
        return handle_is(s->streams.destroy_event(event));
    };
    t.event_record = [s](dist::cuda_event event, dist::cuda_stream on) {
        const std::lock_guard lock(s->guard);
        const bool right = s->streams.record(event, s->streams.index_of(on));
        s->changed();
        return handle_is(right);
    };
    t.event_query = [s](dist::cuda_event event) {
        const std::lock_guard lock(s->guard);
        std::shared_ptr<stream_mark> mark;
        if (!s->streams.newest(event, mark)) return cuda_result::invalid_handle;
        s->run_a_little();
        if (mark && !mark->is_reached) return cuda_result::not_ready;
        if (mark) s->streams.host_learns(*mark);
        return cuda_result::success;
    };
    t.event_synchronize = [s](dist::cuda_event event) {
        std::unique_lock lock(s->guard);
        std::shared_ptr<stream_mark> mark;
        if (!s->streams.newest(event, mark)) return cuda_result::invalid_handle;
        if (!mark) return cuda_result::success;
        if (!s->drive(lock, [&] { return mark->is_reached; })) return cuda_result::launch_failure;
        s->streams.host_learns(*mark);
        return cuda_result::success;
    };
}

template <class State>
void fill_comm_entries(dist::nccl_library& t, const std::shared_ptr<State>& s) {
    using dist::nccl_comm;
    using dist::nccl_result;
    t.init_rank = [s](nccl_comm* to, int ranks, dist::nccl_unique_id id, int rank,
                      dist::nccl_config* config) {
        std::unique_lock lock(s->guard);
        const auto begun = s->nccl.init(to, ranks, id, rank, *config);
        s->changed();
        const auto comm = begun == nccl_result::in_progress ? s->nccl.find(*to) : nullptr;
        if (!comm || !comm->is_blocking) return begun;
        if (!s->drive(lock, [&] { return s->nccl.is_complete(*comm); }))
            return nccl_result::system_error;
        return s->nccl.ask(*comm);
    };
    const auto ends = [&t, s](auto entry, auto member) {
        t.*entry = [s, member](nccl_comm comm) {
            const std::lock_guard lock(s->guard);
            const nccl_result outcome = (s->nccl.*member)(comm);
            s->changed();
            return outcome;
        };
    };
    ends(&dist::nccl_library::finalize, &modelled_nccl::finalize);
    ends(&dist::nccl_library::destroy, &modelled_nccl::destroy);
    ends(&dist::nccl_library::abort, &modelled_nccl::abort);
    t.async_error = [s](nccl_comm of, nccl_result* to) {
        const std::lock_guard lock(s->guard);
        const auto comm = s->nccl.find(of);
        if (!comm) return nccl_result::invalid_argument;
        s->run_a_little();
        *to = s->nccl.ask(*comm);
        s->changed();
        return nccl_result::success;
    };
    const auto tells = [&t, s](auto entry, auto field) {
        t.*entry = [s, field](nccl_comm of, int* to) {
            const std::lock_guard lock(s->guard);
            const auto comm = s->nccl.find(of);
            if (!comm) return nccl_result::invalid_argument;
            *to = field(*comm);
            return nccl_result::success;
        };
    };
    tells(&dist::nccl_library::count,
          [](const modelled_comm& c) { return static_cast<int>(c.clique->ranks.size()); });
    tells(&dist::nccl_library::device, [](const modelled_comm& c) { return c.device; });
    tells(&dist::nccl_library::rank, [](const modelled_comm& c) { return c.rank; });
    t.last_error = [s](nccl_comm of) {
        thread_local std::string words;
        const std::lock_guard lock(s->guard);
        words = s->nccl.last_words(of);
        return words.c_str();
    };
}

template <class State>
void fill_collective_entries(dist::nccl_library& t, const std::shared_ptr<State>& s) {
    using dist::cuda_stream;
    using dist::nccl_comm;
    using dist::nccl_op;
    using dist::nccl_type;
    const auto call = [s](nccl_comm comm, cuda_stream on, nccl_call what) {
        const std::lock_guard lock(s->guard);
        const auto outcome = s->nccl.call(comm, on, what);
        s->changed();
        return outcome;
    };
    t.all_reduce = [call](const void* in, void* out, std::size_t n, nccl_type type, nccl_op op,
                          nccl_comm comm, cuda_stream on) {
        return call(comm, on, {nccl_kind::all_reduce, in, out, n, type, op});
    };
    t.reduce_scatter = [call](const void* in, void* out, std::size_t n, nccl_type type, nccl_op op,
                              nccl_comm comm, cuda_stream on) {
        return call(comm, on, {nccl_kind::reduce_scatter, in, out, n, type, op});
    };
    t.reduce = [call](const void* in, void* out, std::size_t n, nccl_type type, nccl_op op,
                      int root, nccl_comm comm, cuda_stream on) {
        return call(comm, on, {nccl_kind::reduce, in, out, n, type, op, root});
    };
    t.broadcast = [call](const void* in, void* out, std::size_t n, nccl_type type, int root,
                         nccl_comm comm, cuda_stream on) {
        return call(comm, on, {nccl_kind::broadcast, in, out, n, type, nccl_op::sum, root});
    };
    t.all_gather = [call](const void* in, void* out, std::size_t n, nccl_type type, nccl_comm comm,
                          cuda_stream on) {
        return call(comm, on, {nccl_kind::all_gather, in, out, n, type});
    };
    t.send = [call](const void* in, std::size_t n, nccl_type type, int to, nccl_comm comm,
                    cuda_stream on) {
        return call(comm, on, {nccl_kind::send, in, nullptr, n, type, nccl_op::sum, to});
    };
    t.recv = [call](void* out, std::size_t n, nccl_type type, int from, nccl_comm comm,
                    cuda_stream on) {
        return call(comm, on, {nccl_kind::recv, nullptr, out, n, type, nccl_op::sum, from});
    };
}

} // namespace detail

SKEIN_INLINE dist::cuda_runtime device_model::cuda() const {
    dist::cuda_runtime table;
    detail::fill_device_entries(table, state_);
    detail::fill_memory_entries(table, state_);
    detail::fill_stream_entries(table, state_);
    detail::fill_event_entries(table, state_);
    table.source = "a model of CUDA";
    return table;
}

SKEIN_INLINE dist::nccl_library device_model::nccl() const {
    dist::nccl_library table;
    detail::fill_comm_entries(table, state_);
    detail::fill_collective_entries(table, state_);
    table.version = [s = state_](int* to) {
        return *to = s->nccl.version(), dist::nccl_result::success;
    };
    table.unique_id = [s = state_](dist::nccl_unique_id* to) {
        const std::lock_guard lock(s->guard);
        s->nccl.unique_id(*to);
        return dist::nccl_result::success;
    };
    table.error_text = &detail::nccl_words;
    table.group_start = [s = state_] {
        const std::lock_guard lock(s->guard);
        s->nccl.group_start();
        return dist::nccl_result::success;
    };
    table.group_end = [s = state_] {
        const std::lock_guard lock(s->guard);
        const auto outcome = s->nccl.group_end();
        s->changed();
        return outcome;
    };
    table.source = "a model of NCCL";
    table.version_number = state_->options.nccl_version;
    return table;
}

} // namespace skein::sim
