// SPDX-License-Identifier: Apache-2.0
#pragma once
// skein for training (needs LibTorch), beside skein.hpp of this folder.
// Written by scripts/amalgamate.py from include/; do not edit. Never mix it with the split headers.
#if defined(SKEIN_VERSION_STRING) && !defined(SKEIN_SINGLE_INCLUDE)
#error "skein: do not mix single_include/ with the split headers in one program"
#endif
#ifndef SKEIN_SINGLE_INCLUDE
#define SKEIN_SINGLE_INCLUDE 1
#endif
#include "skein.hpp"
#define SKEIN_AMALGAMATED 1
#if defined(SKEIN_COMPILED)
#error "skein: single_include/ is the header-only form: compile without SKEIN_COMPILED, link skein::header_only"
#endif

// ======== skein/train.hpp
// Everything for training: the torch-free part (skein.hpp), torch, dist and the Trainer.
// Needs LibTorch; link skein::train.
// Written by scripts/check_mirror.py --write.


// ======== skein/dist.hpp
// Every public header of the layer dist.
// Written by scripts/check_mirror.py --write.


// ======== skein/dist/bootstrap.hpp
// From a rendezvous to a communicator: who is on which host, addresses, shared segments,
// connections.
//
//     auto comm = make_comm_thread(world, {});          // one call per rank, on its compute thread
//     comm->all_reduce(view, reduce_op::mean).wait();
//     auto second = make_comm_thread(world, {.model = "ring", .name = "control"});   // beside it
//
// Which model it is, options.model says (models.hpp).


// ======== skein/dist/comm_thread.hpp
// A communicator on its own thread, so that collectives run beside the compute thread's work.
//
// Operations are submitted from the compute thread, run one at a time in the order of submission,
// and end with a ticket. Buffers stay with the caller and must live until the ticket is done.
//
// When nothing is queued or running, a small collective of a model that can (communicator::prompt)
// begins in the call itself: what this rank brings is there for the others when it returns. It
// looks for them for a microsecond or two; if they have come, the ticket is done at once. Else a
// thread that waits for the ticket ends it, and the communicator's thread is not woken; that one
// does it if the ticket is asked (done()), if something is submitted behind it, or after some
// milliseconds. Larger collectives, whose other ranks wait for this one's work, go to that thread
// at once, and whoever is first does them: it, or a thread that waits for the ticket.
//
//     ticket t = comm.all_reduce(bucket, reduce_op::mean);   // returns at once
//     ... more backward ...
//     t.wait();                                              // throws if the collective failed


// ======== skein/dist/communicator.hpp
// The communicator: what N ranks can do together, and the words every model of it shares.
//
// Models: stub_communicator (one rank), shm_communicator (one host), ring_communicator (TCP, also
// on the simulated network), hierarchical_communicator (shared memory inside hosts, a ring between
// them), and what a program adds (models.hpp). A process may have several at once, over the same or
// other ranks; each has its own order of collectives.
//
//     std::unique_ptr<communicator> comm = ...;                // on its loop; comm_thread has one
//     auto sum = comm->all_reduce(view_of(std::span<float>(grads)), reduce_op::mean);
//     co_await std::move(sum);


// ======== skein/dist/buffer.hpp
// What collectives work on: elements of a few types in memory of the caller, and how they are
// reduced.


#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace skein::dist {

/// Element types of collectives. u8 is for opaque bytes: it can be copied but not reduced.
enum class dtype : std::uint8_t { f32 = 0, bf16 = 1, f64 = 2, i64 = 3, u8 = 4, f16 = 5 };

/// Two-byte floating point: sums of it are added in float32 and rounded once.
[[nodiscard]] constexpr bool is_half(dtype type) noexcept {
    return type == dtype::bf16 || type == dtype::f16;
}

/// mean is the sum divided by the world size (integers: truncated towards zero).
enum class reduce_op : std::uint8_t { sum = 0, mean = 1, max = 2, min = 3 };

/// Bytes per element.
[[nodiscard]] constexpr std::size_t size_of(dtype type) noexcept {
    switch (type) {
    case dtype::f32: return 4;
    case dtype::bf16: return 2;
    case dtype::f64: return 8;
    case dtype::i64: return 8;
    case dtype::u8: return 1;
    case dtype::f16: return 2;
    }
    return 0;
}

[[nodiscard]] constexpr std::string_view to_string(dtype type) noexcept {
    switch (type) {
    case dtype::f32: return "f32";
    case dtype::bf16: return "bf16";
    case dtype::f64: return "f64";
    case dtype::i64: return "i64";
    case dtype::u8: return "u8";
    case dtype::f16: return "f16";
    }
    return "?";
}

[[nodiscard]] constexpr std::string_view to_string(reduce_op op) noexcept {
    switch (op) {
    case reduce_op::sum: return "sum";
    case reduce_op::mean: return "mean";
    case reduce_op::max: return "max";
    case reduce_op::min: return "min";
    }
    return "?";
}

/// A bfloat16 as its 16 bits: the upper half of a float32.
struct bf16_t {
    std::uint16_t bits = 0;
    friend constexpr bool operator==(bf16_t, bf16_t) = default;
};

/// float32 to bfloat16, to nearest even; NaN stays NaN (quiet).
[[nodiscard]] [[gnu::always_inline]] inline bf16_t to_bf16(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (u >> 16) | 0x40u;
    const bool is_nan = static_cast<std::int32_t>(u & 0x7fffffffu) > 0x7f800000;
    return bf16_t{static_cast<std::uint16_t>(is_nan ? quiet : rounded)};
}

[[nodiscard]] [[gnu::always_inline]] inline float to_float(bf16_t value) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// An IEEE half (binary16) as its 16 bits.
struct f16_t {
    std::uint16_t bits = 0;
    friend constexpr bool operator==(f16_t, f16_t) = default;
};

/// float32 to half, to nearest even, with subnormals; NaN stays NaN (quiet, with what fits of its
/// payload). The same bits as the processor's instruction.
[[nodiscard]] constexpr f16_t to_f16(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    std::uint32_t r = 0;
    if (a > 0x7f800000u) {
        r = 0x7e00u | (a >> 13 & 0x3ffu);
    } else if (a >= 0x477ff000u) { // from 65520 on: infinity
        r = 0x7c00u;
    } else if (a >= 0x38800000u) { // from 2^-14 on: the exponent's bias changes from 127 to 15
        r = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    } else if (a > 0x33000000u) { // above 2^-25: a subnormal in steps of 2^-24
        const std::uint32_t m = (a & 0x7fffffu) | 0x800000u, shift = 126 - (a >> 23);
        const std::uint32_t half = 1u << (shift - 1);
        r = (m + half - 1 + (m >> shift & 1u)) >> shift;
    }
    return f16_t{static_cast<std::uint16_t>(sign | r)};
}

/// Exact; NaN becomes quiet.
[[nodiscard]] constexpr float to_float(f16_t value) noexcept {
    const std::uint32_t sign = std::uint32_t{value.bits} << 16 & 0x80000000u;
    const std::uint32_t m = value.bits & 0x3ffu, e = value.bits >> 10 & 0x1fu;
    if (e == 0) { // a whole number of 2^-24
        const float small = static_cast<float>(m) * 0x1p-24f;
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(small));
    }
    const std::uint32_t special = m == 0 ? 0x7f800000u : 0x7fc00000u | m << 13;
    return std::bit_cast<float>(sign | (e == 31 ? special : (e + 112) << 23 | m << 13));
}

/// Where memory is.
struct device {
    enum class kind : std::uint8_t { cpu, cuda };

    kind type = kind::cpu;
    std::uint8_t index = 0; ///< which one of its kind

    [[nodiscard]] static constexpr device cpu() noexcept { return {}; }
    [[nodiscard]] static constexpr device cuda(std::uint8_t index) noexcept {
        return {kind::cuda, index};
    }
    [[nodiscard]] constexpr bool is_cpu() const noexcept { return type == kind::cpu; }
    friend constexpr bool operator==(device, device) = default;
};

/// "cpu", "cuda:0".
[[nodiscard]] inline std::string to_string(device where) {
    return where.is_cpu() ? "cpu" : "cuda:" + std::to_string(where.index);
}

/// Contiguous elements in memory of the caller. Must stay alive until the collective has ended.
struct buffer_view {
    void* data = nullptr;
    std::size_t count = 0;
    dtype type = dtype::f32;
    device where = device::cpu();

    [[nodiscard]] std::size_t bytes() const noexcept { return count * size_of(type); }
    [[nodiscard]] std::byte* begin() const noexcept { return static_cast<std::byte*>(data); }
    /// Elements [first, first + n).
    [[nodiscard]] buffer_view slice(std::size_t first, std::size_t n) const noexcept {
        return buffer_view{begin() + first * size_of(type), n, type, where};
    }
};

/// Whether T is a type that collectives reduce; see dtype.
template <class T>
inline constexpr bool is_element = false;
template <>
inline constexpr bool is_element<float> = true;
template <>
inline constexpr bool is_element<bf16_t> = true;
template <>
inline constexpr bool is_element<f16_t> = true;
template <>
inline constexpr bool is_element<double> = true;
template <>
inline constexpr bool is_element<std::int64_t> = true;
template <>
inline constexpr bool is_element<std::byte> = true;
template <>
inline constexpr bool is_element<std::uint8_t> = true;

/// The dtype of a C++ element type.
template <class T>
    requires is_element<T>
[[nodiscard]] constexpr dtype dtype_of() noexcept {
    if constexpr (std::same_as<T, float>)
        return dtype::f32;
    else if constexpr (std::same_as<T, bf16_t>)
        return dtype::bf16;
    else if constexpr (std::same_as<T, f16_t>)
        return dtype::f16;
    else if constexpr (std::same_as<T, double>)
        return dtype::f64;
    else if constexpr (std::same_as<T, std::int64_t>)
        return dtype::i64;
    else
        return dtype::u8;
}

/// A view of a span of elements. Collectives do not write to buffers documented as input.
template <class T>
    requires is_element<std::remove_const_t<T>>
[[nodiscard]] buffer_view view_of(std::span<T> elements) noexcept {
    using plain = std::remove_const_t<T>;
    return buffer_view{const_cast<plain*>(elements.data()), elements.size(), dtype_of<plain>(),
                       device::cpu()};
}

} // namespace skein::dist

// ======== skein/dist/group_memory.hpp
// Memory of a communicator: what lies in it is reduced and gathered where it is, without copies
// into slots in between.
//
// Inside a host every rank has the memory of all its neighbours mapped. A reduction reads the peers
// in place, a gather copies straight from them, and in common memory a gather copies nothing. Where
// a model cannot do that (a ring, one rank) the memory is private, and everything works as well.
//
//     auto grads = comm.allocate(bytes, memory_kind::own);          // on all ranks
//     const std::span v(reinterpret_cast<float*>(grads->data()), bytes / sizeof(float));
//     comm.all_reduce(view_of(v), reduce_op::mean).wait();          // in place
//
// Buffers of one collective lie at the same place of the same memory on all ranks, or on all ranks
// in other memory, else all get errc::mismatch.


// ======== skein/dist/shared_memory.hpp
// Memory shared by processes of one host that nothing can leave behind.
//
// It is an unnamed file (memfd): it never has an entry in /dev/shm or any other folder and goes
// with the last process that maps it, kill -9 included. Peers open it through /proc/<pid>/fd/<fd>
// while the creator holds it open; the same works between threads of one process.


#include <cstddef>
#include <string>
#include <utility>

namespace skein::dist {

/// A mapped segment; zero when fresh. Move-only; unmaps in the destructor.
class shared_memory {
public:
    shared_memory() = default;
    shared_memory(shared_memory&& o) noexcept
        : data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_), fd_(std::move(o.fd_)) {}
    shared_memory& operator=(shared_memory&& o) noexcept {
        std::swap(data_, o.data_);
        std::swap(bytes_, o.bytes_);
        std::swap(fd_, o.fd_);
        return *this;
    }
    ~shared_memory();

    /// Makes a segment. Pages cost memory when they are first touched.
    [[nodiscard]] static shared_memory create(std::size_t bytes);

    /// Memory of this process alone: nobody can attach to it.
    [[nodiscard]] static shared_memory create_private(std::size_t bytes);

    /// Where peers find it: attach() takes this text until hide().
    [[nodiscard]] std::string path() const;

    /// Maps a peer's segment; it must have exactly the size expected.
    [[nodiscard]] static shared_memory attach(const std::string& path, std::size_t bytes);

    /// Nobody new can attach from now on; what is mapped stays.
    void hide() noexcept { fd_.reset(); }

    [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

private:
    void map(std::size_t bytes, int flags);

    void* data_ = nullptr;
    std::size_t bytes_ = 0;
    unique_fd fd_;
};

} // namespace skein::dist


// ======== skein/dist/detail/shared_memory.ipp
// Making, finding and mapping a shared segment.


#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/core.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::dist {

namespace detail {

SKEIN_INLINE error cannot_map(std::string what, int code) {
    const bool denied = code == EACCES || code == EPERM;
    const bool full = code == ENOMEM || code == ENOSPC || code == EFBIG || code == EINVAL ||
                      code == EMFILE || code == ENFILE;
    error why(denied ? errc::permission_denied
              : full ? errc::exhausted
                     : errc::io,
              "cannot map " + std::move(what));
    why.with_cause(std::strerror(code));
    if (!full)
        why.with_hint("choose the TCP ring when processes of this host may not share memory");
    return why;
}

} // namespace detail

SKEIN_INLINE shared_memory::~shared_memory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

SKEIN_INLINE shared_memory shared_memory::create(std::size_t bytes) {
    shared_memory m;
    m.fd_.reset(::memfd_create("skein", MFD_CLOEXEC));
    if (!m.fd_ || ::ftruncate(m.fd_.get(), static_cast<off_t>(bytes)) != 0) {
        throw detail::cannot_map(fmt::format("a shared segment of {} bytes", bytes), errno);
    }
    m.map(bytes, MAP_SHARED);
    return m;
}

SKEIN_INLINE shared_memory shared_memory::create_private(std::size_t bytes) {
    shared_memory m;
    m.map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    return m;
}

SKEIN_INLINE std::string shared_memory::path() const {
    return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_.get());
}

SKEIN_INLINE shared_memory shared_memory::attach(const std::string& path, std::size_t bytes) {
    shared_memory m;
    m.fd_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!m.fd_) throw detail::cannot_map(fmt::format("the shared segment {}", path), errno);
    struct stat info{};
    if (::fstat(m.fd_.get(), &info) != 0 || static_cast<std::size_t>(info.st_size) != bytes) {
        throw error(errc::mismatch, fmt::format("the shared segment {} has {} bytes, {} expected",
                                                path, info.st_size, bytes))
            .with_hint("are all ranks the same build with the same options?");
    }
    m.map(bytes, MAP_SHARED);
    m.hide();
    return m;
}

SKEIN_INLINE void shared_memory::map(std::size_t bytes, int flags) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd_.get(), 0);
    if (p == MAP_FAILED) {
        throw detail::cannot_map(fmt::format("{} bytes of memory", bytes), errno);
    }
    data_ = p;
    bytes_ = bytes;
}

} // namespace skein::dist


// ======== skein/dist/group_memory.hpp, continued
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace skein::dist {

struct buffer_view;
class shm_communicator;
class group_memory;

/// Whose memory allocate() gives.
enum class memory_kind : std::uint8_t {
    own,   ///< every rank has its own; the ranks of its host have it mapped too
    common ///< one memory for all ranks of a host
};

namespace detail {

/// Where a buffer lies in the memory of a communicator; memory is null elsewhere.
struct memory_place {
    const group_memory* memory = nullptr;
    std::uint16_t id = 0; ///< which of the communicator's, the same on all ranks
    bool input = false;   ///< of a gather: it is where `in` lies, not `out`
    std::size_t offset = 0;

    /// Of a signature; 0 elsewhere.
    [[nodiscard]] std::uint64_t word() const noexcept {
        return std::uint64_t{id} << 48 | std::uint64_t{input} << 47 | offset;
    }
};

/// The memory that one rank has from one communicator, by address. Any thread.
class memory_table {
public:
    void add(const group_memory& memory, std::uint16_t id);
    void remove(const std::byte* begin) noexcept;
    /// A view that begins inside and ends outside is a bug of the caller.
    [[nodiscard]] memory_place find(const buffer_view& view) const;

private:
    struct entry {
        const group_memory* memory;
        std::uint16_t id;
    };
    mutable std::mutex guard_;
    std::map<const std::byte*, entry> begins_;
};

} // namespace detail

/// From communicator::allocate(). Zero when fresh; pages cost memory when they are first touched.
/// Unmaps at the end, which is no collective: peers keep what they have mapped.
class group_memory {
public:
    group_memory(const group_memory&) = delete;
    group_memory& operator=(const group_memory&) = delete;
    ~group_memory();

    [[nodiscard]] std::byte* data() const noexcept { return maps_[mine_].data(); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] memory_kind kind() const noexcept { return kind_; }
    /// Every rank of the group has mapped it (common: all see the same bytes).
    [[nodiscard]] bool everywhere() const noexcept { return everywhere_; }

    /// Of this rank alone.
    ///   errors  exhausted, io
    [[nodiscard]] static std::shared_ptr<group_memory> alone(std::size_t bytes, memory_kind kind,
                                                             bool everywhere);

private:
    friend class shm_communicator;
    group_memory(std::size_t bytes, memory_kind kind, bool everywhere,
                 std::vector<shared_memory> maps, std::size_t mine);
    /// That of a rank, as this process has it mapped.
    [[nodiscard]] std::byte* of(int rank) const noexcept {
        return kind_ == memory_kind::common ? data() : maps_[static_cast<std::size_t>(rank)].data();
    }

    std::size_t bytes_;
    memory_kind kind_;
    bool everywhere_;
    std::vector<shared_memory> maps_; // own: of every rank; common, alone: one
    std::size_t mine_;
    std::shared_ptr<detail::memory_table> listed_; // where it is to be taken out
};

} // namespace skein::dist


// ======== skein/dist/detail/group_memory.ipp
// Finding the memory that a buffer lies in, and its end.


#include <functional>
#include <utility>

namespace skein::dist {

SKEIN_INLINE void detail::memory_table::add(const group_memory& memory, std::uint16_t id) {
    const std::lock_guard lock(guard_);
    begins_.emplace(memory.data(), entry{&memory, id});
}

SKEIN_INLINE void detail::memory_table::remove(const std::byte* begin) noexcept {
    const std::lock_guard lock(guard_);
    begins_.erase(begin);
}

SKEIN_INLINE detail::memory_place detail::memory_table::find(const buffer_view& view) const {
    if (view.count == 0) return {};
    const std::lock_guard lock(guard_);
    auto behind = begins_.upper_bound(view.begin());
    if (behind == begins_.begin()) return {};
    const auto& [begin, found] = *std::prev(behind);
    const auto offset = static_cast<std::size_t>(view.begin() - begin);
    if (offset >= found.memory->bytes()) return {};
    SKEIN_CHECK(view.bytes() <= found.memory->bytes() - offset,
                "a buffer of {} bytes at byte {} of {} bytes of group memory", view.bytes(), offset,
                found.memory->bytes());
    return {.memory = found.memory, .id = found.id, .input = false, .offset = offset};
}

SKEIN_INLINE group_memory::group_memory(std::size_t bytes, memory_kind kind, bool everywhere,
                                        std::vector<shared_memory> maps, std::size_t mine)
    : bytes_(bytes), kind_(kind), everywhere_(everywhere), maps_(std::move(maps)), mine_(mine) {}

SKEIN_INLINE group_memory::~group_memory() {
    if (listed_) listed_->remove(data());
}

SKEIN_INLINE std::shared_ptr<group_memory> group_memory::alone(std::size_t bytes, memory_kind kind,
                                                               bool everywhere) {
    std::vector<shared_memory> one;
    one.push_back(shared_memory::create_private(bytes));
    return std::shared_ptr<group_memory>(
        new group_memory(bytes, kind, everywhere, std::move(one), 0));
}

} // namespace skein::dist

// ======== skein/dist/tag.hpp
// What a collective is for: which unit, which phase, which step.
//
// All ranks have to give the same tag to the same collective. Two ranks that reduce different units
// of one size would otherwise add unlike things without a word; with tags both get errc::mismatch.
//
//     constexpr collective_tag tag{.unit = 3, .phase = tag_phase::reduce, .step = 12};
//     // in errors: "reduce of unit 3 at step 12"
//     comm.all_reduce(grads, reduce_op::mean, tag);


#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace skein::dist {

/// What part of a training step, or of what is around it, a collective is.
enum class tag_phase : std::uint8_t { none, gather, reduce, publish, row, buffers, save };

[[nodiscard]] constexpr std::string_view to_string(tag_phase phase) noexcept {
    switch (phase) {
    case tag_phase::none: return "none";
    case tag_phase::gather: return "gather";
    case tag_phase::reduce: return "reduce";
    case tag_phase::publish: return "publish";
    case tag_phase::row: return "row";
    case tag_phase::buffers: return "buffers";
    case tag_phase::save: return "save";
    }
    return "?";
}

/// Ranks compare the lower 32 bits of the step.
struct collective_tag {
    std::uint32_t unit = 0; ///< below 2^24
    tag_phase phase = tag_phase::none;
    std::uint64_t step = 0;

    friend constexpr bool operator==(collective_tag, collective_tag) = default;

    /// As ranks send it: 8 bits of the phase, 24 of the unit, 32 of the step.
    [[nodiscard]] std::uint64_t pack() const {
        SKEIN_CHECK(unit < (1u << 24), "unit {} of a collective's tag", unit);
        return std::uint64_t{static_cast<std::uint8_t>(phase)} << 56 | std::uint64_t{unit} << 32 |
               (step & 0xffffffffu);
    }
    [[nodiscard]] static constexpr collective_tag unpack(std::uint64_t packed) noexcept {
        return {.unit = static_cast<std::uint32_t>(packed >> 32) & 0xffffffu,
                .phase = static_cast<tag_phase>(packed >> 56),
                .step = packed & 0xffffffffu};
    }
};

/// "reduce of unit 3 at step 12"; "no tag" for the default one.
[[nodiscard]] inline std::string to_string(collective_tag tag) {
    if (tag == collective_tag{}) return "no tag";
    return fmt::format("{} of unit {} at step {}", to_string(tag.phase), tag.unit, tag.step);
}

} // namespace skein::dist


// ======== skein/dist/communicator.hpp, continued
#include <coroutine>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace skein::dist {

/// Limits of one communicator.
struct collective_options {
    /// From the start of a collective on this rank: a rank that has not done its part by then is
    /// named in errc::timeout on all ranks. Lost processes are noticed at once, not by this.
    time_span deadline = time_constants::lan().collective_timeout;
};

/// A collective that stopped on the thread which began it. `rest` blocks the thread that resumes
/// it.
struct suspended_start {
    std::coroutine_handle<> rest; ///< null: it ended
    bool others_wait = false;     ///< for what this rank does in `rest`; else it has done its part
};

/// What a model offers whose small collectives can begin on the thread that submits them
/// (comm_thread uses it). One thread at a time calls the communicator; who lets another one call it
/// synchronizes the two.
class prompt_start {
public:
    /// From here on, a task that must wait for longer than a look, or is not small, is suspended.
    virtual void begin_here() noexcept = 0;
    /// No more of that. What was suspended wants to be resumed before anything else is called.
    [[nodiscard]] virtual suspended_start end_here() noexcept = 0;

protected:
    prompt_start() = default;
    prompt_start(const prompt_start&) = default;
    prompt_start& operator=(const prompt_start&) = default;
    ~prompt_start() = default;
};

/// A group of ranks that call the same collectives in the same order.
///
/// Laws: every rank calls with the same counts, types, roots and tags, else all of them get
/// errc::mismatch naming the ranks; sums of bf16 and f16 are made in float32 and rounded once, also
/// between hosts; the same inputs give the same bits on every rank, in every run with the same
/// world size and model, and N=2 gives the same bits in all models; after any error the group is
/// unusable and every later call throws that error; one collective at a time per rank. A task has
/// ended when the result can be used: by the host, or, for a model whose memory is a device's, by
/// what is put on the device's stream from then on. Buffers that a model cannot reach are refused
/// with errc::not_supported before anything is sent. abort() may be called from any thread,
/// everything else from the thread of the loop.
class communicator {
public:
    communicator(const communicator&) = delete;
    communicator& operator=(const communicator&) = delete;
    virtual ~communicator();

    /// In [0, world_size()): the ranks of this group, which may be fewer than those of the job.
    [[nodiscard]] virtual int rank() const noexcept = 0;
    [[nodiscard]] virtual int world_size() const noexcept = 0;
    /// What it is, for people: "shm x2", "ring x4", "hierarchical x4 on 2 hosts".
    [[nodiscard]] virtual std::string name() const = 0;

    /// io of every rank holds the reduction.
    virtual task<void> all_reduce(buffer_view io, reduce_op op) = 0;
    /// in.count = N * out.count; rank r gets slice r; in is unchanged.
    virtual task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op) = 0;
    /// In place and uneven: io.count = sum of counts, and counts[r] elements behind those of the
    /// ranks before it are rank r's. They hold the reduction on rank r, whatever else io held is
    /// lost. counts may have zeros, must be the same on all ranks, and must outlive the task.
    virtual task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                        reduce_op op) = 0;
    /// The same with the own part in `out`: io is f32, bf16 or f16, out is f32 x counts[rank()].
    /// The sums are made in float32 and not rounded again. What io holds afterwards is not
    /// promised.
    virtual task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                        buffer_view out, reduce_op op) = 0;
    /// out.count = N * in.count; in may be the own slice of out.
    virtual task<void> all_gather(buffer_view in, buffer_view out) = 0;
    /// counts[r] elements of rank r, in rank order; counts must outlive the task.
    virtual task<void> all_gather_v(buffer_view in, buffer_view out,
                                    std::span<const std::size_t> counts) = 0;
    /// io of every rank holds the root's.
    virtual task<void> broadcast(buffer_view io, int root) = 0;
    /// Nobody leaves before everybody came.
    virtual task<void> barrier() = 0;
    /// Memory in which collectives of this communicator need no copies (group_memory.hpp). All
    /// ranks call it with the same bytes, more than none, and kind.
    ///   errors  exhausted, io; on all ranks if on one
    virtual task<std::shared_ptr<group_memory>> allocate(std::size_t bytes, memory_kind kind) = 0;
    /// One message, in order per pair; counts must agree.
    virtual task<void> send(buffer_view io, int to) = 0;
    virtual task<void> recv(buffer_view io, int from) = 0;

    /// Orderly leave, awaited before destruction; peers that go on without this rank get peer_lost.
    virtual task<void> close() = 0;
    /// Any thread. Fails the running and every later collective on all ranks it can reach.
    virtual void abort(error why) noexcept = 0;
    /// Of the collectives that begin after it.
    virtual void set_deadline(time_span limit) = 0;
    /// What the collectives that begin after it are for. Messages have none to agree on.
    virtual void set_tag(collective_tag tag) = 0;
    /// Null: everything runs on the loop's thread.
    [[nodiscard]] virtual prompt_start* prompt() noexcept { return nullptr; }

protected:
    communicator() = default;
};

} // namespace skein::dist


// ======== skein/dist/detail/communicator.ipp
// Where the base of all communicators lives.

namespace skein::dist {

SKEIN_INLINE communicator::~communicator() = default;

} // namespace skein::dist


// ======== skein/dist/comm_thread.hpp, continued
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace skein::net {
class loop_thread;
}

namespace skein::dist {

class comm_thread;

/// The end of one submitted operation, for the host. Copies share it; any thread may ask or wait. A
/// model that orders its work on a device's stream will keep its event in the shared state.
class [[nodiscard]] ticket {
public:
    /// An already finished one.
    ticket() = default;

    [[nodiscard]] bool done() const noexcept {
        if (!state_ || state_->phase.load(std::memory_order_acquire) != running) return true;
        hand_over(); // for the next time
        return false;
    }
    /// Blocks until the operation has ended; throws its error. May be called again.
    void wait() const;

private:
    friend class comm_thread;
    static constexpr std::uint32_t running = 0, succeeded = 1, failed = 2;
    static constexpr int spins = 200; // about 5 us: longer costs the comm thread its core
    struct state {
        std::atomic<std::uint32_t> phase{running};
        std::optional<error> why; // written before phase becomes failed
        // A collective that was suspended in its call, for whoever takes it first; and whose it is.
        std::atomic<void*> rest{nullptr};
        comm_thread* owner = nullptr; // lives until the phase has changed
    };
    explicit ticket(std::shared_ptr<state> s) : state_(std::move(s)) {}
    void hand_over() const noexcept;
    std::shared_ptr<state> state_;
};

/// Sums of what a comm_thread has done; for overlap and bandwidth reports.
struct comm_stats {
    std::uint64_t operations = 0;
    std::uint64_t bytes = 0; ///< of the buffers given, not of the wire
    duration busy{};         ///< time in which an operation was running
};

/// Owns the loop thread and the communicator. Submit from one thread (the compute thread);
/// abort() and stats() from any. The destructor ends the running operations in order, then leaves
/// the group in an orderly way; when it runs because of an exception, it aborts the group.
class comm_thread {
    friend class ticket;

public:
    /// comm must live on worker's loop. at_end runs first of all in the destructor: it takes back
    /// what others may still call (rendezvous::on_lost).
    comm_thread(std::unique_ptr<net::loop_thread> worker, std::unique_ptr<communicator> comm,
                unique_function<void()> at_end = {});
    comm_thread(const comm_thread&) = delete;
    comm_thread& operator=(const comm_thread&) = delete;
    ~comm_thread();

    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int world_size() const noexcept { return world_size_; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }

    /// Any work on the communicator as an operation; returns at once. What `start` holds lives
    /// until the operation has ended.
    ///   bytes  of the buffers, for stats()
    ///   tag    of every collective in it that sets none itself
    ticket submit(std::size_t bytes, unique_function<task<void>(communicator&)> start,
                  collective_tag tag = {});

    // The same for each collective; see communicator for the meaning.
    ticket all_reduce(buffer_view io, reduce_op op, collective_tag tag = {});
    ticket reduce_scatter(buffer_view in, buffer_view out, reduce_op op, collective_tag tag = {});
    ticket reduce_scatter_v(buffer_view io, std::vector<std::size_t> counts, reduce_op op,
                            collective_tag tag = {});
    ticket reduce_scatter_v(buffer_view io, std::vector<std::size_t> counts, buffer_view out,
                            reduce_op op, collective_tag tag = {});
    ticket all_gather(buffer_view in, buffer_view out, collective_tag tag = {});
    ticket all_gather_v(buffer_view in, buffer_view out, std::vector<std::size_t> counts,
                        collective_tag tag = {});
    ticket broadcast(buffer_view io, int root, collective_tag tag = {});
    ticket barrier(collective_tag tag = {});
    /// Blocks until the operations before it have ended and all ranks have called it.
    [[nodiscard]] std::shared_ptr<group_memory> allocate(std::size_t bytes, memory_kind kind);
    ticket send(buffer_view io, int to);
    ticket recv(buffer_view io, int from);

    /// Any thread: fails the running, the queued and every later operation, here and at the peers.
    void abort(error why) noexcept;
    /// Blocks until everything submitted has ended, well or not. Whoever owns buffers calls it
    /// before they go away, after abort() when nobody may wait for peers any more.
    void drain() noexcept;
    /// For the operations submitted after it.
    void set_deadline(time_span limit);
    [[nodiscard]] comm_stats stats() const;
    /// The loop it runs on, for other work that should share the thread.
    [[nodiscard]] net::loop_thread& worker() noexcept { return *worker_; }

private:
    struct operation {
        std::shared_ptr<ticket::state> end;
        unique_function<task<void>(communicator&)> start;
        std::size_t bytes = 0;
        collective_tag tag;
    };
    ticket begin_here(std::size_t bytes, unique_function<task<void>(communicator&)> start,
                      collective_tag tag);
    static skein::detail::self_owned run_here(comm_thread* self);
    ticket end_here();
    static bool go_on(ticket::state& end);
    static void go_on_with(void* rest, ticket::state& end);
    void finish_here(ticket::state& end);
    void hand_over(std::shared_ptr<ticket::state> end);
    task<void> look_after();
    void forget_here();
    void hand_on();
    void record(const operation& op, time_point begin);
    static void tell(ticket::state& end, const result<void>& outcome);
    task<void> drive();
    /// A model may throw before it gives a task: that is the operation's error too.
    static task<void> started(operation* op, communicator* comm);
    task<void> leave();
    std::optional<operation> take();
    static task<void> allocate_into(communicator& comm, std::size_t bytes, memory_kind kind,
                                    std::shared_ptr<group_memory>* made);
    static task<void> apply_deadline(communicator& comm, duration limit);

    std::unique_ptr<net::loop_thread> worker_;
    std::unique_ptr<communicator> comm_;
    unique_function<void()> at_end_;
    scope tasks_; // of the loop's thread
    int rank_ = 0, world_size_ = 1;
    std::string name_;

    // What began in its call. Of the thread that made driving_ true for it; then of who took the
    // rest.
    prompt_start* prompt_ = nullptr;
    std::optional<operation> here_;
    time_point here_since_{};
    std::optional<result<void>> here_ended_;

    mutable std::mutex guard_; // the fields below
    std::deque<operation> queue_;
    bool driving_ = false;
    std::shared_ptr<ticket::state> waiting_; // began here, for who waits for it; null: handed over
    bool looking_after_ = false;             // the loop does
    std::condition_variable idle_;           // driving_ became false
    comm_stats stats_;
};

} // namespace skein::dist


// ======== skein/dist/detail/comm_thread.ipp
// The queue of a comm_thread, and the operations that go into it.


// ======== skein/dist/doorbell.hpp
// A doorbell: how one thread sleeps until another one, maybe of another process, has changed
// something in shared memory. Lives in the shared segment, one per sleeper.
//
//     sleeper:  wait_at(bell, spin, until, ready)      ringer:  counter.store(n); bell.ring();
//
// States of asleep: 0 the owner looks by itself, nobody needs to ring; 1 it is about to sleep or
// sleeps. Invariant: the sleeper sets asleep = 1, passes a seq_cst fence, reads the bell, looks
// once more (acquire loads will do after the fence), then sleeps if the bell is still the same; a
// ringer changes the world by a seq_cst store, then reads asleep with a seq_cst load. So either the
// ringer sees 1 and rings, or the sleeper sees the change.


#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

namespace skein::dist {

/// The system's monotonic clock: shared memory exists only in the real world.
[[nodiscard]] inline time_point steady_now() noexcept { return system_clock().now(); }

/// Tells the processor that this thread spins.
inline void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// All zero is a valid new doorbell, so that fresh shared memory needs no construction.
struct alignas(128) doorbell {
    std::atomic<std::uint32_t> rings;
    std::atomic<std::uint32_t> asleep;

    /// Wakes the owner if it sleeps; a load and nothing else if it does not. Any thread or process.
    void ring() noexcept {
        if (asleep.load(std::memory_order_seq_cst) != 0) ring_always();
    }
    void ring_always() noexcept;
    /// Sleeps while rings is `seen`, at most for `longest`.
    void sleep(std::uint32_t seen, duration longest) noexcept;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(doorbell) == 128);

/// How long to look before sleeping: long while waits turn out to be short, else hardly at all,
/// since looking costs a core that somebody may compute on. Two sides that both sleep make each
/// other's waits long, as each wakes late; so now and then a wait looks for longer than waking
/// takes.
class spin_budget {
public:
    [[nodiscard]] int rounds() const noexcept { return rounds_; }
    /// For a wait that begins now.
    [[nodiscard]] int next() noexcept {
        if (rounds_ > least || --until_trial_ > 0) return rounds_;
        between_trials_ = std::min(2 * between_trials_, rarest);
        until_trial_ = between_trials_;
        return trial;
    }
    /// Looking was enough.
    void paid() noexcept {
        rounds_ = std::min(rounds_ + rounds_ / 2 + 16, most);
        between_trials_ = until_trial_ = often;
    }
    /// Tells how long a wait took that was slept through in the end.
    void slept(duration length) noexcept {
        if (length < worthwhile)
            paid();
        else
            rounds_ = std::max(rounds_ / 2, least);
    }

private:
    static constexpr duration worthwhile =
        std::chrono::microseconds(60);            // a sleep costs about 10-50 us
    static constexpr int least = 32, most = 2048; // a pause takes about 20-40 ns
    static constexpr int trial = 8192;            // two idle cores wake each other in 60-90 us
    static constexpr int often = 16, rarest = 512;
    int rounds_ = 512, until_trial_ = often, between_trials_ = often;
};

/// The core this thread runs on; negative: the system does not say.
[[nodiscard]] int this_core() noexcept;

/// Blocks the thread until ready(). Between sleeps of at most `slice`, still_good() may throw.
///   worth_looking  false: sleep at once, as when the other side needs this core to come
template <class Ready, class Check, class Look>
void wait_at(doorbell& bell, spin_budget& spin, duration slice, Ready ready, Check still_good,
             Look worth_looking) {
    if (ready()) return;
    const bool look = worth_looking();
    const time_point begin = steady_now();
    for (int i = look ? spin.next() : 0; i > 0; --i) {
        cpu_pause();
        if (ready()) return spin.paid();
    }
    struct awake_again {
        doorbell& bell;
        ~awake_again() { bell.asleep.store(0, std::memory_order_relaxed); }
    } guard{bell};
    for (;;) {
        bell.asleep.store(1, std::memory_order_seq_cst);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        const std::uint32_t seen = bell.rings.load(std::memory_order_seq_cst);
        if (ready()) break;
        still_good();
        bell.sleep(seen, slice);
    }
    if (look) spin.slept(steady_now() - begin);
}

template <class Ready, class Check>
void wait_at(doorbell& bell, spin_budget& spin, duration slice, Ready ready, Check still_good) {
    wait_at(bell, spin, slice, std::move(ready), std::move(still_good), [] { return true; });
}

} // namespace skein::dist


// ======== skein/dist/detail/doorbell.ipp
// The system calls of a doorbell.

#include <climits>
#include <algorithm>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace skein::dist {

SKEIN_INLINE void doorbell::ring_always() noexcept {
    rings.fetch_add(1, std::memory_order_seq_cst);
    auto* const word = reinterpret_cast<std::uint32_t*>(&rings);
    ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

SKEIN_INLINE void doorbell::sleep(std::uint32_t seen, duration longest) noexcept {
    const auto ns = std::max<std::int64_t>(longest.count(), 0);
    const std::timespec limit{static_cast<std::time_t>(ns / 1'000'000'000),
                              static_cast<long>(ns % 1'000'000'000)};
    auto* const word = reinterpret_cast<std::uint32_t*>(&rings);
    ::syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

SKEIN_INLINE int this_core() noexcept { return ::sched_getcpu(); }

} // namespace skein::dist


// ======== skein/dist/detail/comm_thread.ipp, continued
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::dist {

SKEIN_INLINE void ticket::wait() const {
    if (!state_) return;
    (void)comm_thread::go_on(*state_);
    for (int spin = 0; spin < spins && !done(); ++spin) cpu_pause();
    while (!done()) state_->phase.wait(running, std::memory_order_acquire);
    if (state_->phase.load(std::memory_order_acquire) == failed) throw *state_->why;
}

/// To the loop's thread, if nobody has taken it.
SKEIN_INLINE void ticket::hand_over() const noexcept {
    void* const rest = state_->rest.exchange(nullptr, std::memory_order_acq_rel);
    if (rest == nullptr) return;
    auto& loop = state_->owner->worker_->loop(); // it cannot go away before the rest has run
    loop.post_from_any_thread([s = state_, rest] { comm_thread::go_on_with(rest, *s); });
}

SKEIN_INLINE comm_thread::comm_thread(std::unique_ptr<net::loop_thread> worker,
                                      std::unique_ptr<communicator> comm,
                                      unique_function<void()> at_end)
    : worker_(std::move(worker)), comm_(std::move(comm)), at_end_(std::move(at_end)),
      rank_(comm_->rank()), world_size_(comm_->world_size()), name_(comm_->name()),
      prompt_(comm_->prompt()) {}

SKEIN_INLINE comm_thread::~comm_thread() {
    if (at_end_) at_end_();
    if (std::uncaught_exceptions() > 0) {
        abort(error(errc::aborted, fmt::format("rank {} leaves because of an exception", rank_)));
    }
    drain(); // also what another thread goes on with
    worker_->run([this] { return leave(); });
}

SKEIN_INLINE ticket comm_thread::submit(std::size_t bytes,
                                        unique_function<task<void>(communicator&)> start,
                                        collective_tag tag) {
    auto end = std::make_shared<ticket::state>();
    std::shared_ptr<ticket::state> before;
    bool wake = false;
    {
        const std::lock_guard lock(guard_);
        queue_.push_back(operation{end, std::move(start), bytes, tag});
        wake = !std::exchange(driving_, true);
        before = std::move(waiting_);
    }
    if (before) hand_over(std::move(before));
    if (wake) worker_->loop().post_from_any_thread([this] { tasks_.spawn(drive()); });
    return ticket(std::move(end));
}

/// submit() for collectives: on this thread as far as it goes.
SKEIN_INLINE ticket comm_thread::begin_here(std::size_t bytes,
                                            unique_function<task<void>(communicator&)> start,
                                            collective_tag tag) {
    bool mine = false;
    if (prompt_ != nullptr) {
        const std::lock_guard lock(guard_);
        mine = !std::exchange(driving_, true); // as if the loop ran: nobody else begins anything
    }
    if (!mine) return submit(bytes, std::move(start), tag);
    here_.emplace(operation{nullptr, std::move(start), bytes, tag});
    here_since_ = steady_now();
    here_ended_.reset();
    prompt_->begin_here();
    const task_context::use none(nullptr); // the rest may run on another thread
    loop::resume(run_here(this).frame);
    const auto parked = prompt_->end_here();
    if (!parked.rest) return end_here();
    // Without memory for it there is no way back: the collective has begun.
    auto state = []() noexcept { return std::make_shared<ticket::state>(); }();
    state->owner = this;
    state->rest.store(parked.rest.address(), std::memory_order_release);
    if (parked.others_wait) {
        hand_over(state);
        return ticket(std::move(state));
    }
    bool look = false;
    {
        const std::lock_guard lock(guard_);
        waiting_ = state;
        look = !std::exchange(looking_after_, true);
    }
    if (look) worker_->loop().post_from_any_thread([this] { tasks_.spawn(look_after()); });
    return ticket(std::move(state));
}

/// The loop's thread goes on with it, or a thread that waits for the ticket before.
SKEIN_INLINE void comm_thread::hand_over(std::shared_ptr<ticket::state> end) {
    worker_->loop().post_from_any_thread([end = std::move(end)] { (void)go_on(*end); });
}

/// Ends what began in its call if nobody waits for it, so that errors and deadlines are noticed.
SKEIN_INLINE task<void> comm_thread::look_after() {
    std::shared_ptr<ticket::state> seen;
    for (bool again = false; !again;) {
        auto pause = sleep_for(time_constants::lan().unwaited_collective);
        co_await pause;
        const std::lock_guard lock(guard_);
        again = waiting_ == seen; // null: nothing to look after any more
        seen = again ? std::exchange(waiting_, nullptr) : waiting_;
        if (again || !seen) looking_after_ = false;
        if (!seen) co_return;
    }
    (void)go_on(*seen);
}

/// It has an owner: begin_here() or finish_here() see it end before anything else runs.
SKEIN_INLINE skein::detail::self_owned comm_thread::run_here(comm_thread* self) {
    auto outcome = as_result(started(&*self->here_, self->comm_.get()));
    self->here_ended_.emplace(co_await std::move(outcome));
}

/// Everything went well or badly on this thread.
SKEIN_INLINE ticket comm_thread::end_here() {
    SKEIN_CHECK(here_ended_, "a collective was suspended without a place to go on");
    ticket end;
    if (!*here_ended_) {
        end = ticket(std::make_shared<ticket::state>());
        tell(*end.state_, *here_ended_);
    }
    hand_on();
    return end;
}

/// Runs the rest of a collective that began in its call, if nobody has taken it. Any thread.
SKEIN_INLINE bool comm_thread::go_on(ticket::state& end) {
    void* const rest = end.rest.exchange(nullptr, std::memory_order_acq_rel);
    if (rest == nullptr) return false;
    go_on_with(rest, end);
    return true;
}

/// driving_ is still true: the owner cannot go away before it is not.
SKEIN_INLINE void comm_thread::go_on_with(void* rest, ticket::state& end) {
    auto* const owner = end.owner;
    loop::resume(std::coroutine_handle<>::from_address(rest));
    owner->finish_here(end);
}

SKEIN_INLINE void comm_thread::finish_here(ticket::state& end) {
    SKEIN_CHECK(here_ended_, "a collective was suspended a second time");
    {
        const std::lock_guard lock(guard_);
        forget_here();
    }
    tell(end, *here_ended_);
    hand_on();
}

/// It has ended: nothing of the caller's is touched from here on. guard_ is held.
SKEIN_INLINE void comm_thread::forget_here() {
    record(*here_, here_since_);
    here_.reset();
    waiting_ = nullptr;
}

/// Lets the loop's thread go on with what is queued.
SKEIN_INLINE void comm_thread::hand_on() {
    bool more = false;
    {
        const std::lock_guard lock(guard_);
        if (here_) forget_here();
        more = driving_ = !queue_.empty();
        if (!more) idle_.notify_all();
    }
    if (more) worker_->loop().post_from_any_thread([this] { tasks_.spawn(drive()); });
}

/// For stats(); guard_ is held.
SKEIN_INLINE void comm_thread::record(const operation& op, time_point begin) {
    stats_.operations += 1;
    stats_.bytes += op.bytes;
    stats_.busy += steady_now() - begin;
}

SKEIN_INLINE void comm_thread::tell(ticket::state& end, const result<void>& outcome) {
    if (!outcome) end.why = outcome.error();
    end.phase.store(outcome ? ticket::succeeded : ticket::failed, std::memory_order_release);
    end.phase.notify_all();
}

SKEIN_INLINE std::optional<comm_thread::operation> comm_thread::take() {
    const std::lock_guard lock(guard_);
    if (queue_.empty()) {
        driving_ = false;
        idle_.notify_all();
        return std::nullopt;
    }
    std::optional<operation> next(std::move(queue_.front()));
    queue_.pop_front();
    return next;
}

SKEIN_INLINE task<void> comm_thread::started(operation* op, communicator* comm) {
    comm->set_tag(op->tag);
    auto work = op->start(*comm);
    co_await std::move(work);
}

/// Runs what is queued, in order, on the loop's thread.
SKEIN_INLINE task<void> comm_thread::drive() {
    while (auto op = take()) {
        const time_point begin = steady_now();
        auto outcome = as_result(started(&*op, comm_.get()));
        auto ended = co_await std::move(outcome);
        {
            const std::lock_guard lock(guard_);
            record(*op, begin);
        }
        tell(*op->end, ended);
    }
}

SKEIN_INLINE task<void> comm_thread::leave() {
    tasks_.cancel(); // look_after(): everything else has ended
    auto joined = as_result(tasks_.join());
    auto ignored = co_await std::move(joined);
    (void)ignored;
    auto closing = as_result(comm_->close());
    auto closed = co_await std::move(closing);
    (void)closed;
    comm_.reset(); // its streams end on their own loop
}

SKEIN_INLINE ticket comm_thread::all_reduce(buffer_view io, reduce_op op, collective_tag tag) {
    return begin_here(io.bytes(), [=](communicator& c) { return c.all_reduce(io, op); }, tag);
}
SKEIN_INLINE ticket comm_thread::reduce_scatter(buffer_view in, buffer_view out, reduce_op op,
                                                collective_tag tag) {
    return begin_here(
        in.bytes(), [=](communicator& c) { return c.reduce_scatter(in, out, op); }, tag);
}
SKEIN_INLINE ticket comm_thread::reduce_scatter_v(buffer_view io, std::vector<std::size_t> counts,
                                                  reduce_op op, collective_tag tag) {
    auto start = [io, op, counts = std::move(counts)](communicator& c) {
        return c.reduce_scatter_v(io, counts, op);
    };
    return begin_here(io.bytes(), std::move(start), tag);
}
SKEIN_INLINE ticket comm_thread::reduce_scatter_v(buffer_view io, std::vector<std::size_t> counts,
                                                  buffer_view out, reduce_op op,
                                                  collective_tag tag) {
    auto start = [io, out, op, counts = std::move(counts)](communicator& c) {
        return c.reduce_scatter_v(io, counts, out, op);
    };
    return begin_here(io.bytes(), std::move(start), tag);
}
SKEIN_INLINE ticket comm_thread::all_gather(buffer_view in, buffer_view out, collective_tag tag) {
    return begin_here(out.bytes(), [=](communicator& c) { return c.all_gather(in, out); }, tag);
}
SKEIN_INLINE ticket comm_thread::all_gather_v(buffer_view in, buffer_view out,
                                              std::vector<std::size_t> counts, collective_tag tag) {
    auto start = [in, out, counts = std::move(counts)](communicator& c) {
        return c.all_gather_v(in, out, counts); // the operation, and so counts, outlives the task
    };
    return begin_here(out.bytes(), std::move(start), tag);
}
SKEIN_INLINE ticket comm_thread::broadcast(buffer_view io, int root, collective_tag tag) {
    return begin_here(io.bytes(), [=](communicator& c) { return c.broadcast(io, root); }, tag);
}
SKEIN_INLINE ticket comm_thread::barrier(collective_tag tag) {
    return begin_here(0, [](communicator& c) { return c.barrier(); }, tag);
}
SKEIN_INLINE task<void> comm_thread::allocate_into(communicator& comm, std::size_t bytes,
                                                   memory_kind kind,
                                                   std::shared_ptr<group_memory>* made) {
    auto making = comm.allocate(bytes, kind);
    *made = co_await std::move(making);
}

SKEIN_INLINE std::shared_ptr<group_memory> comm_thread::allocate(std::size_t bytes,
                                                                 memory_kind kind) {
    std::shared_ptr<group_memory> made;
    auto end =
        submit(0, [=, to = &made](communicator& c) { return allocate_into(c, bytes, kind, to); });
    end.wait();
    return made;
}
SKEIN_INLINE ticket comm_thread::send(buffer_view io, int to) {
    return submit(io.bytes(), [=](communicator& c) { return c.send(io, to); });
}
SKEIN_INLINE ticket comm_thread::recv(buffer_view io, int from) {
    return submit(io.bytes(), [=](communicator& c) { return c.recv(io, from); });
}

SKEIN_INLINE void comm_thread::abort(error why) noexcept { comm_->abort(std::move(why)); }

SKEIN_INLINE void comm_thread::drain() noexcept {
    std::unique_lock lock(guard_);
    if (waiting_) hand_over(std::exchange(waiting_, nullptr));
    idle_.wait(lock, [this] { return !driving_; });
}

SKEIN_INLINE task<void> comm_thread::apply_deadline(communicator& comm, duration limit) {
    comm.set_deadline(limit);
    co_return;
}

SKEIN_INLINE void comm_thread::set_deadline(time_span limit) {
    auto ordered = submit(0, [limit](communicator& c) { return apply_deadline(c, limit); });
    (void)ordered;
}

SKEIN_INLINE comm_stats comm_thread::stats() const {
    const std::lock_guard lock(guard_);
    return stats_;
}

} // namespace skein::dist

// ======== skein/dist/models.hpp
// The models of communicators, by name; a program may add its own.
//
//     dist::add_comm_model({.name = "mine",
//                           .fits = [](const comm_site& site) { return comm_fit{.score = 200}; },
//                           .make = [](const comm_site& site) { return make_mine(site); }});
//
// automatic takes the model with the highest score among those that fit. Of skein's own: one rank
// -> stub; all on one host -> shm; one per host -> ring; else hierarchical.


// ======== skein/dist/placement.hpp
// Which ranks of a world share a host.


#include <cstddef>
#include <string>
#include <vector>

namespace skein::dist {

/// Hosts in the order of their first rank, ranks ascending.
struct placement {
    std::vector<std::vector<int>> hosts{};
    int my_host = 0;
    int my_place = 0; ///< index in hosts[my_host]; 0 leads

    [[nodiscard]] const std::vector<int>& mine() const {
        return hosts[static_cast<std::size_t>(my_host)];
    }
    [[nodiscard]] std::vector<int> leaders() const;
    /// host_of[r] = any text that is the same for ranks of one host.
    [[nodiscard]] static placement from(const std::vector<std::string>& host_of, int rank);
};

} // namespace skein::dist


// ======== skein/dist/detail/placement.ipp
// From the hosts of all ranks to groups of ranks.

#include <algorithm>

namespace skein::dist {

SKEIN_INLINE std::vector<int> placement::leaders() const {
    std::vector<int> first;
    for (const auto& h : hosts) first.push_back(h.front());
    return first;
}

SKEIN_INLINE placement placement::from(const std::vector<std::string>& host_of, int rank) {
    placement p;
    std::vector<std::string> names;
    for (std::size_t r = 0; r < host_of.size(); ++r) {
        const auto known = std::find(names.begin(), names.end(), host_of[r]);
        const auto h = static_cast<std::size_t>(known - names.begin());
        if (known == names.end()) {
            names.push_back(host_of[r]);
            p.hosts.emplace_back();
        }
        if (static_cast<int>(r) == rank) {
            p.my_host = static_cast<int>(h);
            p.my_place = static_cast<int>(p.hosts[h].size());
        }
        p.hosts[h].push_back(static_cast<int>(r));
    }
    return p;
}

} // namespace skein::dist

// ======== skein/dist/ring.hpp
// Collectives between hosts: a ring of streams, each rank sends to the next and hears the one
// before.
//
// All-reduce is a reduce-scatter and an all-gather of N-1 steps each: every rank sends and receives
// 2(N-1)/N of the bytes, cut into pieces, so that a piece is sent on while the next one arrives.
// Element sums go around the ring in a fixed order that depends only on N and the element's slice.
// Sums of bf16 and f16: the first step sends elements as they are, partial sums travel as float32,
// and the result is rounded once, before it is gathered. Small operations gather everything and
// reduce in rank order, which halves the steps.
//
// Runs on any network: TCP, Unix sockets, the simulated one. A broken connection fails the group at
// once; an abort travels both ways around the ring, with the name of the rank that caused it.
//
//   source: Patarasu, Yuan: Bandwidth optimal all-reduce algorithms, 2009


// ======== skein/dist/detail/collective_signature.hpp
// What a rank says it is doing, so that two ranks doing different things get an error, not garbage.


#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::dist::detail {

enum class op_kind : std::uint8_t {
    none = 0,
    all_reduce = 1,
    reduce_scatter = 2,
    all_gather = 3,
    all_gather_v = 4,
    broadcast = 5,
    barrier = 6,
    message = 7,
    reduce = 8,
    reduce_scatter_v = 9,
    allocate = 10,
};

[[nodiscard]] constexpr std::string_view to_string(op_kind kind) noexcept {
    switch (kind) {
    case op_kind::none: return "nothing";
    case op_kind::all_reduce: return "all_reduce";
    case op_kind::reduce_scatter: return "reduce_scatter";
    case op_kind::all_gather: return "all_gather";
    case op_kind::all_gather_v: return "all_gather_v";
    case op_kind::broadcast: return "broadcast";
    case op_kind::barrier: return "barrier";
    case op_kind::message: return "send/recv";
    case op_kind::reduce: return "reduce";
    case op_kind::reduce_scatter_v: return "reduce_scatter_v";
    case op_kind::allocate: return "allocate";
    }
    return "?";
}

/// The part of a collective call that must be the same on every rank. Trivially copyable: it lies
/// in shared memory and in frame headers.
struct signature {
    std::uint64_t sequence = 0; ///< counts the collectives of this communicator, from 1
    std::uint64_t count = 0;    ///< elements (of uneven parts: the total)
    std::uint64_t detail = 0;   ///< root, or a hash of the counts
    std::uint64_t tag = 0;      ///< collective_tag::pack()
    std::uint64_t memory = 0;   ///< memory_place::word(), inside a host; 0: memory of the caller
    op_kind kind = op_kind::none;
    dtype type = dtype::f32;
    reduce_op op = reduce_op::sum;
    op_kind outer = op_kind::none; ///< what it is a part of (hierarchical)
    dtype into = dtype::f32;       ///< of the result; mostly `type`
    std::uint8_t unused[3] = {};

    friend bool operator==(const signature&, const signature&) = default;
};

/// "all_reduce #7 (f32 x 100, sum)", "reduce_scatter_v #8 (bf16 x 100 into f32, sum, ...)"; with a
/// tag ", reduce of unit 3 at step 12" behind it.
[[nodiscard]] std::string describe(const signature& s);
[[nodiscard]] error mismatch_error(int rank_a, const signature& a, int rank_b, const signature& b);
/// What the others learn when `rank` got no memory.
[[nodiscard]] error no_memory(int rank, const signature& what, const error& why);
/// The error of a group as one rank throws it: with where that rank is, cause and hint kept.
[[nodiscard]] error error_at(const error& why, std::string where);
/// Where each part begins when they lie one after the other.
[[nodiscard]] std::vector<std::size_t> starts_of(std::span<const std::size_t> counts);
[[nodiscard]] std::uint64_t hash_counts(std::span<const std::size_t> counts) noexcept;

} // namespace skein::dist::detail


// ======== skein/dist/detail/collective_signature.ipp
// Signatures of collectives in words, for errors.


#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::dist::detail {

SKEIN_INLINE std::string describe_untagged(const signature& s) {
    if (s.kind == op_kind::none) return "no collective";
    if (s.kind == op_kind::barrier) return fmt::format("barrier #{}", s.sequence);
    if (s.kind == op_kind::allocate) {
        return fmt::format("allocate #{} ({} bytes, {})", s.sequence, s.count,
                           s.detail == 0 ? "own" : "common");
    }
    std::string more;
    if (s.kind == op_kind::all_reduce || s.kind == op_kind::reduce_scatter ||
        s.kind == op_kind::reduce || s.kind == op_kind::reduce_scatter_v) {
        more = fmt::format(", {}", to_string(s.op));
    }
    if (s.kind == op_kind::broadcast || s.kind == op_kind::reduce) {
        more += fmt::format(", root {}", s.detail);
    }
    if (s.kind == op_kind::all_gather_v || s.kind == op_kind::reduce_scatter_v)
        more += fmt::format(", counts {:08x}", s.detail & 0xffffffffu);
    if (s.memory != 0) {
        more += fmt::format(", {} byte {} of memory {}", (s.memory >> 47 & 1) != 0 ? "from" : "at",
                            s.memory & 0x7fffffffffffu, s.memory >> 48);
    }
    if (s.outer != op_kind::none && s.outer != s.kind)
        more += fmt::format(", for {}", to_string(s.outer));
    const auto into = s.into == s.type ? "" : fmt::format(" into {}", to_string(s.into));
    return fmt::format("{} #{} ({} x {}{}{})", to_string(s.kind), s.sequence, to_string(s.type),
                       s.count, into, more);
}

SKEIN_INLINE std::string describe(const signature& s) {
    const std::string call = describe_untagged(s);
    return s.tag == 0 ? call : call + ", " + to_string(collective_tag::unpack(s.tag));
}

SKEIN_INLINE error mismatch_error(int rank_a, const signature& a, int rank_b, const signature& b) {
    return error(errc::mismatch, fmt::format("ranks do not agree: rank {} is in {}, rank {} in {}",
                                             rank_a, describe(a), rank_b, describe(b)))
        .with_hint("every rank must call the same collectives with the same counts and tags in the "
                   "same order");
}

SKEIN_INLINE error no_memory(int rank, const signature& what, const error& why) {
    return error(why.code(),
                 fmt::format("rank {} failed in {}: {}", rank, describe(what), why.text()))
        .with_cause(why.cause())
        .with_hint(why.hint());
}

SKEIN_INLINE error error_at(const error& why, std::string where) {
    std::string text = why.where().empty() ? why.text() : why.where() + ": " + why.text();
    return error(why.code(), std::move(text))
        .with_where(std::move(where))
        .with_cause(why.cause())
        .with_hint(why.hint());
}

SKEIN_INLINE std::vector<std::size_t> starts_of(std::span<const std::size_t> counts) {
    std::vector<std::size_t> starts(counts.size());
    for (std::size_t p = 1; p < counts.size(); ++p) starts[p] = starts[p - 1] + counts[p - 1];
    return starts;
}

SKEIN_INLINE std::uint64_t hash_counts(std::span<const std::size_t> counts) noexcept {
    fnv1a h;
    for (const std::size_t c : counts) h.number(c);
    return h.value();
}

} // namespace skein::dist::detail


// ======== skein/dist/ring.hpp, continued
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace skein::dist {

class links;

/// Sizes in which data passes through a ring.
struct ring_options {
    std::size_t piece_bytes = std::size_t{1} << 20;  ///< one frame
    std::size_t small_bytes = std::size_t{64} << 10; ///< up to here: gather all, then reduce
};

/// One rank's end. Made by connect(); close() has to be awaited before destruction.
class ring_communicator final : public communicator {
public:
    /// Connects with the neighbours; all members call it.
    ///   group    world ranks of the members, the same on all; position: this rank's index in it
    ///   divisor  what mean divides by; 0 = the size of the group (hierarchical: of the world)
    ///   errors   refused, timeout, permission_denied; names the rank that was not there
    static task<std::unique_ptr<ring_communicator>> connect(std::shared_ptr<links> net,
                                                            std::vector<int> group, int position,
                                                            ring_options pieces = {},
                                                            collective_options limits = {},
                                                            int divisor = 0);
    ring_communicator(const ring_communicator&) = delete;
    ring_communicator& operator=(const ring_communicator&) = delete;
    ~ring_communicator() override;

    [[nodiscard]] int rank() const noexcept override;
    [[nodiscard]] int world_size() const noexcept override;
    [[nodiscard]] std::string name() const override;
    void set_deadline(time_span limit) noexcept override;
    void set_tag(collective_tag tag) override;

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

    /// all_reduce from `in`, which is lost, into `out` of as many elements; of another type when in
    /// is f32: then the sum is rounded once, to bf16 or f16.
    task<void> all_reduce_into(buffer_view in, buffer_view out, reduce_op op);

    /// The collective that the next ones are parts of; none: they stand alone.
    void set_outer(detail::op_kind kind) noexcept;
    /// A barrier in which all say the same.
    task<void> agree(detail::signature what);
    /// Called once, on the loop, when the group has failed.
    void on_failure(unique_function<void(const error&)> listener);

private:
    class core; // what runs on the loop (detail/ring_core.ipp)

    explicit ring_communicator(std::shared_ptr<core> made) noexcept;

    std::shared_ptr<core> core_;
};

} // namespace skein::dist


// ======== skein/dist/detail/ring.ipp
// The members of ring_communicator: each hands on to the core, which lives as long as its work.


// ======== skein/dist/detail/ring_core.ipp
// The state of one rank of a ring, and what it does step by step; for the other files of the ring.


// ======== skein/dist/detail/messages.ipp
// send and recv between any two ranks of a world, over a link of their own per direction.


// ======== skein/dist/detail/ring_frame.ipp
// What travels on the links of a ring: a header of 64 bytes, then data or an error.


// ======== skein/dist/detail/abort_body.ipp
// The error of an abort as bytes: what a ring's notice and the record in a shared segment hold.


#include <cstddef>
#include <string>

#include <fmt/core.h>

namespace skein::dist::detail {

/// No body is longer, and no more is read from a neighbour.
inline constexpr std::size_t most_abort_bytes = 4096;

/// The error with its cause and hint, cut to most_abort_bytes.
[[nodiscard]] SKEIN_INLINE byte_buffer abort_body(const error& why) {
    const auto cut = [](const std::string& text, std::size_t most) { return text.substr(0, most); };
    return wire::encode(error(why.code(), cut(why.text(), 2000))
                            .with_where(cut(why.where(), 250))
                            .with_cause(cut(why.cause(), 1000))
                            .with_hint(cut(why.hint(), 750)));
}

/// The error in a body that the rank `from` wrote ("rank 3", or "a rank" when nobody knows which).
[[nodiscard]] SKEIN_INLINE error decode_abort(byte_span body, const std::string& from) {
    error why(errc::unknown, "");
    const auto done = wire::decode(body, why);
    if (done) return why;
    return error(errc::aborted, fmt::format("{} has aborted", from))
        .with_cause(done.error().what());
}

} // namespace skein::dist::detail


// ======== skein/dist/detail/ring_frame.ipp, continued
#include <cstdint>
#include <string>

#include <fmt/core.h>

namespace skein::dist::detail {

enum class ring_kind : std::uint32_t { data = 1, abort = 2, bye = 3 };

/// step counts the frames of one collective on one link.
struct ring_header {
    static constexpr std::size_t size = 64;
    static constexpr std::uint32_t magic = 0x6b6e7264; // "drnk"
    static constexpr std::uint32_t max_notice = most_abort_bytes;
    ring_kind kind = ring_kind::data;
    signature what;
    std::uint32_t step = 0;
    std::uint32_t bytes = 0;

    void encode(std::byte* to) const noexcept {
        store_le(to, magic);
        store_le(to + 4, static_cast<std::uint32_t>(kind));
        store_le(to + 8, what.sequence);
        store_le(to + 16, what.count);
        store_le(to + 24, what.detail);
        store_le(to + 32, what.tag);
        to[40] = static_cast<std::byte>(what.kind);
        to[41] = static_cast<std::byte>(what.type);
        to[42] = static_cast<std::byte>(what.op);
        to[43] = static_cast<std::byte>(what.outer);
        store_le(to + 44, static_cast<std::uint32_t>(what.into));
        store_le(to + 48, step);
        store_le(to + 52, bytes);
        store_le(to + 56, std::uint32_t{0});
        store_le(to + 60, crc32c(byte_span(to, 60)));
    }
    [[nodiscard]] static result<ring_header> decode(const std::byte* from) {
        if (load_le<std::uint32_t>(from) != magic ||
            load_le<std::uint32_t>(from + 60) != crc32c(byte_span(from, 60))) {
            return error(errc::corrupt, "the stream between two ranks is damaged, or out of step");
        }
        ring_header h;
        h.kind = static_cast<ring_kind>(load_le<std::uint32_t>(from + 4));
        h.what.sequence = load_le<std::uint64_t>(from + 8);
        h.what.count = load_le<std::uint64_t>(from + 16);
        h.what.detail = load_le<std::uint64_t>(from + 24);
        h.what.tag = load_le<std::uint64_t>(from + 32);
        h.what.kind = static_cast<op_kind>(from[40]);
        h.what.type = static_cast<dtype>(from[41]);
        h.what.op = static_cast<reduce_op>(from[42]);
        h.what.outer = static_cast<op_kind>(from[43]);
        h.what.into = static_cast<dtype>(from[44]);
        h.step = load_le<std::uint32_t>(from + 48);
        h.bytes = load_le<std::uint32_t>(from + 52);
        return h;
    }
};

/// An abort notice as bytes: header, then the error.
[[nodiscard]] SKEIN_INLINE byte_buffer abort_notice(const error& why) {
    const byte_buffer body = abort_body(why);
    ring_header h;
    h.kind = ring_kind::abort;
    h.bytes = static_cast<std::uint32_t>(body.size());
    byte_buffer out(ring_header::size);
    h.encode(out.data());
    append(out, body);
    return out;
}

[[nodiscard]] SKEIN_INLINE byte_buffer bye_notice() {
    ring_header h;
    h.kind = ring_kind::bye;
    byte_buffer out(ring_header::size);
    h.encode(out.data());
    return out;
}

} // namespace skein::dist::detail

// ======== skein/dist/detail/stream_io.hpp
// Whole reads and writes on a stream.


namespace skein::net {
class stream;
}

namespace skein::dist::detail {

/// Reads exactly all of `into`.
///   errors  closed when the peer ended its side before the first byte, reset in the middle
task<void> read_exact(net::stream& from, mut_byte_span into);
task<void> write_exact(net::stream& to, byte_span bytes);

} // namespace skein::dist::detail


// ======== skein/dist/detail/stream_io.ipp
// Whole reads and writes on a stream.


#include <span>
#include <utility>

namespace skein::dist::detail {

SKEIN_INLINE task<void> read_exact(net::stream& from, mut_byte_span into) {
    std::size_t have = 0;
    while (have < into.size()) {
        auto some = from.read_some(into.subspan(have));
        const std::size_t n = co_await std::move(some);
        if (n == 0) {
            throw error(have == 0 ? errc::closed : errc::reset, "the peer closed the connection");
        }
        have += n;
    }
}

SKEIN_INLINE task<void> write_exact(net::stream& to, byte_span bytes) {
    auto all = to.write_all(std::span<const byte_span>(&bytes, 1));
    co_await std::move(all);
}

} // namespace skein::dist::detail

// ======== skein/dist/links.hpp
// Streams between the ranks of a world, opened when first needed, authenticated by the world's
// token.
//
// Every rank listens once and knows everybody's address. A link has a direction: the rank that
// sends opens it, the rank that receives accepts it, so no two ranks race to open the same one.
// Strangers, and ranks of another world or of another communicator of this one, are turned away.
//
//     auto net = std::make_shared<links>(network, std::move(listener), rank, addresses, secret,
//                                        "w");
//     net->start();
//     // and rank 3: from(rank, links::ring, until)
//     auto opening = net->to(3, links::ring, until);
//     net::stream* s = co_await std::move(opening);


#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::net {
class acceptor;
class admission;
class listener;
class network;
class stream;
struct connection_options;
} // namespace skein::net

namespace skein::dist {

/// One loop. start() before use, stop() before destruction.
class links {
public:
    enum channel : std::uint32_t { ring = 1, messages = 2 };

    /// addresses: by world rank. group: what the links are for, the same on all ranks that meet
    /// here.
    links(std::shared_ptr<net::network> network, std::unique_ptr<net::listener> listener, int rank,
          std::vector<net::address> addresses, net::token secret, std::string group);
    links(const links&) = delete;
    links& operator=(const links&) = delete;
    ~links();

    /// Begins to accept; on the loop's thread.
    void start();

    /// The stream on which this rank sends to a peer. Connects (and tries again) until `until`.
    ///   errors  refused, timeout, permission_denied, mismatch; all name the rank and the address
    task<net::stream*> to(int peer, channel use, time_point until);

    /// The stream on which a peer sends to this rank; waits until the peer has opened it.
    task<net::stream*> from(int peer, channel use, time_point until);

    /// Waiting for links makes no sense any more: every to() and from() throws this.
    void abandon(error why);

    /// Closes all streams at once and ends the accept loop.
    task<void> stop();

    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int world_size() const noexcept { return static_cast<int>(addresses_.size()); }

private:
    struct key {
        int peer = 0;
        std::uint32_t channel = 0;
        auto operator<=>(const key&) const = default;
    };
    struct accepted {
        std::unique_ptr<net::stream> stream;
        bool taken = false; ///< from() has given it out
    };

    [[nodiscard]] net::connection_options as(channel use) const;
    task<net::stream*> await_incoming(key k);
    task<void> greet(std::unique_ptr<net::stream> s, net::admission* place);
    static task<void> serve(links* self);

    std::shared_ptr<net::network> network_;
    std::unique_ptr<net::acceptor> door_;
    int rank_;
    std::vector<net::address> addresses_;
    net::token secret_;
    std::string group_;
    std::map<key, accepted> incoming_;
    std::map<key, std::unique_ptr<net::stream>> outgoing_;
    wait_queue changed_;
    bool stopped_ = false;
    std::optional<error> abandoned_;
    cancel_source give_up_; // ends connecting when abandoned
    scope tasks_;
};

} // namespace skein::dist


// ======== skein/dist/detail/links.ipp
// How links are opened and accepted.


#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist {

namespace detail {

/// Who calls, and for which channel: the dist part of an identity.
struct link_card {
    std::uint32_t rank = 0, channel = 0;

    [[nodiscard]] byte_buffer encode() const {
        byte_buffer bytes(8);
        store_le(bytes.data(), rank);
        store_le(bytes.data() + 4, channel);
        return bytes;
    }
    [[nodiscard]] static link_card decode(byte_span bytes) {
        if (bytes.size() != 8)
            throw error(errc::malformed, "the peer does not say which rank it is");
        return {load_le<std::uint32_t>(bytes.data()), load_le<std::uint32_t>(bytes.data() + 4)};
    }
};

} // namespace detail

SKEIN_INLINE links::links(std::shared_ptr<net::network> network,
                          std::unique_ptr<net::listener> listener, int rank,
                          std::vector<net::address> addresses, net::token secret, std::string group)
    : network_(std::move(network)), rank_(rank), addresses_(std::move(addresses)), secret_(secret),
      group_(std::move(group)) {
    net::acceptor_options bounds; // all ranks may come at once, and from one address
    bounds.places += 2 * addresses_.size();
    bounds.places_per_address += 2 * addresses_.size();
    door_ = std::make_unique<net::acceptor>(std::move(listener), bounds);
}
SKEIN_INLINE links::~links() = default;

SKEIN_INLINE void links::start() { tasks_.spawn(serve(this)); }

SKEIN_INLINE task<void> links::serve(links* self) {
    auto serving =
        as_result(self->door_->serve([self](std::unique_ptr<net::stream> s, net::admission* place) {
            return self->greet(std::move(s), place);
        }));
    auto ended = co_await std::move(serving);
    if (ended || self->stopped_ || ended.error().code() == errc::cancelled) co_return;
    logging::warn("dist", "no more links can be accepted", {{"why", ended.error().what()}});
}

SKEIN_INLINE net::connection_options links::as(channel use) const {
    net::connection_options options;
    options.secret = secret_;
    options.self.name = fmt::format("rank {}", rank_);
    options.self.purpose = "collectives of " + group_;
    options.self.extra =
        detail::link_card{static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(use)}
            .encode();
    return options;
}

SKEIN_INLINE task<net::stream*> links::to(int peer, channel use, time_point until) {
    const key k{peer, use};
    if (const auto found = outgoing_.find(k); found != outgoing_.end())
        co_return found->second.get();
    if (abandoned_) throw *abandoned_;
    const auto& at = addresses_[static_cast<std::size_t>(peer)];
    net::reconnect_policy policy;
    policy.max_tries = 0;
    policy.until = until;
    policy.worth_another = &net::reconnect_policy::is_no_refusal;
    auto dialing = net::dial_patiently(*network_, at, as(use), policy);
    auto stoppable = as_result(with_cancel(give_up_.token(), std::move(dialing)));
    auto opened = co_await std::move(stoppable);
    if (abandoned_) throw *abandoned_;
    if (!opened) {
        const auto& why = opened.error();
        if (why.code() == errc::cancelled) throw why;
        throw error(why.code(), fmt::format("rank {} cannot reach rank {} at {}", rank_, peer,
                                            net::to_string(at)))
            .with_cause(why.what());
    }
    auto* stream = opened->stream.get();
    outgoing_[k] = std::move(opened->stream);
    co_return stream;
}

SKEIN_INLINE task<net::stream*> links::from(int peer, channel use, time_point until) {
    auto waiting = with_deadline(await_incoming(key{peer, use}), until);
    auto outcome = as_result(std::move(waiting));
    auto came = co_await std::move(outcome);
    if (!came) {
        if (came.error().code() != errc::timeout) throw came.error();
        throw error(errc::timeout,
                    fmt::format("rank {} has not connected to rank {} in time", peer, rank_));
    }
    co_return *came;
}

SKEIN_INLINE task<net::stream*> links::await_incoming(key k) {
    while (!incoming_.contains(k)) {
        if (abandoned_) throw *abandoned_;
        if (stopped_) throw error(errc::closed, "the links of this rank are closed");
        auto change = changed_.wait();
        co_await change;
    }
    auto& found = incoming_.at(k);
    found.taken = true;
    co_return found.stream.get();
}

SKEIN_INLINE void links::abandon(error why) {
    abandoned_ = std::move(why);
    give_up_.request();
    changed_.wake_all();
}

SKEIN_INLINE task<void> links::stop() {
    stopped_ = true;
    if (door_) door_->close();
    tasks_.cancel();
    for (auto& [k, s] : incoming_) s.stream->close();
    for (auto& [k, s] : outgoing_) s->close();
    changed_.wake_all();
    auto joined = as_result(shield(tasks_.join()));
    auto ignored = co_await std::move(joined);
    (void)ignored;
    incoming_.clear();
    outgoing_.clear();
    door_.reset();
}

SKEIN_INLINE task<void> links::greet(std::unique_ptr<net::stream> s, net::admission* place) {
    auto greeting = net::authenticate(*s, net::side::accepting, as(ring), {}, place);
    const net::identity who = co_await std::move(greeting);
    const auto card = detail::link_card::decode(who.extra);
    place->authenticated();
    const key k{static_cast<int>(card.rank), card.channel};
    const auto old = incoming_.find(k);
    const bool in_use = old != incoming_.end() && old->second.taken;
    if (stopped_ || k.peer < 0 || k.peer >= world_size() || in_use) {
        s->close();
        co_return;
    }
    if (old != incoming_.end()) old->second.stream->close(); // a try whose caller gave up
    incoming_[k].stream = std::move(s);
    changed_.wake_all();
}

} // namespace skein::dist


// ======== skein/dist/detail/messages.ipp, continued
#include <array>

namespace skein::dist::detail {

SKEIN_INLINE error lost_in_message(int peer, const signature& what, const error& why) {
    return error(errc::peer_lost,
                 fmt::format("rank {} failed in {}: {}", peer, describe(what), why.what()));
}

SKEIN_INLINE task<void> send_message(links& net, buffer_view io, int to, signature what,
                                     time_point until) {
    auto opening = net.to(to, links::messages, until);
    auto* link = co_await std::move(opening);
    ring_header h;
    h.what = what;
    std::array<std::byte, ring_header::size> head{};
    h.encode(head.data());
    const std::array<byte_span, 2> batch{byte_span(head), byte_span(io.begin(), io.bytes())};
    auto wrote = as_result(link->write_all(std::span(batch).first(io.count > 0 ? 2 : 1)));
    auto result = co_await std::move(wrote);
    if (!result) {
        if (result.error().code() == errc::cancelled) throw result.error();
        throw lost_in_message(to, what, result.error());
    }
}

SKEIN_INLINE task<void> recv_message(links& net, buffer_view io, int from, signature what,
                                     time_point until) {
    auto waiting = net.from(from, links::messages, until);
    auto* link = co_await std::move(waiting);
    std::array<std::byte, ring_header::size> head{};
    auto got = as_result(read_exact(*link, head));
    auto outcome = co_await std::move(got);
    if (outcome) {
        const auto h = ring_header::decode(head.data()).value();
        if (h.what.count != io.count || h.what.type != io.type) {
            throw error(errc::mismatch, fmt::format("rank {} sent {} x {}, rank {} expects {} x {}",
                                                    from, to_string(h.what.type), h.what.count,
                                                    net.rank(), to_string(io.type), io.count));
        }
        auto rest = as_result(read_exact(*link, mut_byte_span(io.begin(), io.bytes())));
        outcome = co_await std::move(rest);
    }
    if (!outcome) {
        if (outcome.error().code() == errc::cancelled) throw outcome.error();
        throw lost_in_message(from, what, outcome.error());
    }
}

} // namespace skein::dist::detail

// ======== skein/dist/reduce.hpp
// The arithmetic of collectives: element-wise sum, mean, max and min in a fixed order.
//
// The result of element i depends only on the values and the order of the sources: loops are cut
// into blocks for the vector unit, but no sum is ever regrouped, so all compilers and machines give
// the same bits (NaN payloads excepted). bfloat16 and half are added in float32 and rounded once,
// to nearest even. max and min give NaN as soon as one side is NaN.
//
//     const void* parts[] = {of_rank_0, of_rank_1, of_rank_2};
//     reduce(out, parts, n, dtype::f32, reduce_op::mean, 3);   // ((p0 + p1) + p2) / 3


#include <cstddef>
#include <span>

namespace skein::dist {

/// dst[i] = sources[0][i] op sources[1][i] op ..., from left to right.
///   dst      n elements; may be exactly one of the sources, no other overlap
///   sources  one or more pointers to n elements; one source is copied
///   divisor  for mean: what the sum is divided by, once, at the end
void reduce(void* dst, std::span<const void* const> sources, std::size_t n, dtype type,
            reduce_op op, int divisor) noexcept;

/// The same with a result of another type: `to` and `type` are each f32, bf16 or f16. Into f32
/// nothing is rounded but the float32 sums.
void reduce(void* dst, dtype to, std::span<const void* const> sources, std::size_t n, dtype type,
            reduce_op op, int divisor) noexcept;

/// n elements of one type, as one source among others.
struct operand {
    const void* data = nullptr;
    dtype type = dtype::f32;
};

/// The same with sources of several types, each f32, bf16 or f16: all are widened to float32,
/// combined from left to right, and rounded to `to` once.
void reduce_wide(void* dst, dtype to, std::span<const operand> sources, std::size_t n, reduce_op op,
                 int divisor) noexcept;

/// dst[i] = a[i] op b[i]; mean divides the sum by divisor (1: leaves the sum).
void reduce(void* dst, const void* a, const void* b, std::size_t n, dtype type, reduce_op op,
            int divisor) noexcept;

} // namespace skein::dist


// ======== skein/dist/detail/reduce.ipp
// Which loop a reduction runs.


// ======== skein/dist/detail/reduce_loops.hpp
// The loops of reduce(). Their order of operations is the same at every optimisation level; their
// speed needs -O2 and no -ffast-math.


#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace skein::dist {

namespace detail {

/// How an element type is stored, and the type its arithmetic is done in.
template <class T>
struct arithmetic {
    using wide = T;
    [[gnu::always_inline]] static T load(T x) noexcept { return x; }
    [[gnu::always_inline]] static T store(T x) noexcept { return x; }
};
template <>
struct arithmetic<bf16_t> {
    using wide = float;
    [[gnu::always_inline]] static float load(bf16_t x) noexcept { return to_float(x); }
    [[gnu::always_inline]] static bf16_t store(float x) noexcept { return to_bf16(x); }
};

template <reduce_op Op, class W>
[[gnu::always_inline]] inline W combine(W a, W b) noexcept {
    if constexpr (Op == reduce_op::max) {
        return (a > b || a != a) ? a : b;
    } else if constexpr (Op == reduce_op::min) {
        return (a < b || a != a) ? a : b;
    } else if constexpr (std::is_integral_v<W>) { // wraps around, as two's complement does
        using u = std::make_unsigned_t<W>;
        return static_cast<W>(static_cast<u>(a) + static_cast<u>(b));
    } else {
        return a + b;
    }
}

// One pass: dst[i] = f(a[i], b[i]). dst may be a or b. The inner loop has a constant length, so
// that g++ -O2 vectorises it as clang does; the pragmas say what the caller promises: no partial
// overlap.
inline constexpr std::size_t lanes = 32;

template <class D, class A, class B, class F>
[[gnu::always_inline]] inline void zip(D* dst, const A* a, const B* b, std::size_t n,
                                       F f) noexcept {
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        D* const d = dst + i;
        const A* const x = a + i;
        const B* const y = b + i;
#if !defined(__clang__)
#pragma GCC ivdep
#elif !__has_feature(                                                                              \
    undefined_behavior_sanitizer) // under it no loop is vectorised, with a warning each
#pragma clang loop vectorize(assume_safety)
#endif
        for (std::size_t j = 0; j < lanes; ++j) d[j] = f(x[j], y[j]);
    }
    for (; i < n; ++i) dst[i] = f(a[i], b[i]);
}

// The elements of one block are combined over all sources before the next block, so that the
// accumulator stays in the first-level cache.
inline constexpr std::size_t block = 1024;

template <class T, reduce_op Op>
[[gnu::always_inline]] inline void reduce_block(T* dst, const void* const* sources,
                                                std::size_t parts, std::size_t first, std::size_t n,
                                                int divisor) noexcept {
    using m = arithmetic<T>;
    using wide = typename m::wide;
    const auto source = [&](std::size_t s) { return static_cast<const T*>(sources[s]) + first; };
    [[maybe_unused]] const wide by = static_cast<wide>(divisor);
    const auto last = [&](wide a, wide b) __attribute__((always_inline)) {
        const wide c = combine<Op>(a, b);
        if constexpr (Op == reduce_op::mean)
            return m::store(c / by);
        else
            return m::store(c);
    };
    T* const out = dst + first;
    if (parts == 2) {
        zip(out, source(0), source(1), n,
            [&](T a, T b) __attribute__((always_inline)) { return last(m::load(a), m::load(b)); });
        return;
    }
    alignas(64) wide acc[block];
    zip(acc, source(0), source(1), n, [](T a, T b) __attribute__((always_inline)) {
        return combine<Op>(m::load(a), m::load(b));
    });
    for (std::size_t s = 2; s + 1 < parts; ++s) {
        zip(acc, acc, source(s), n,
            [](wide a, T b) __attribute__((always_inline)) { return combine<Op>(a, m::load(b)); });
    }
    zip(out, acc, source(parts - 1), n,
        [&](wide a, T b) __attribute__((always_inline)) { return last(a, m::load(b)); });
}

template <class T, reduce_op Op>
[[gnu::always_inline]] inline void reduce_all(T* dst, const void* const* sources, std::size_t parts,
                                              std::size_t n, int divisor) noexcept {
    for (std::size_t i = 0; i < n; i += block) {
        reduce_block<T, Op>(dst, sources, parts, i, std::min(block, n - i), divisor);
    }
}

template <class T, reduce_op Op>
void reduce_plain(T* dst, const void* const* sources, std::size_t parts, std::size_t n,
                  int divisor) noexcept {
    reduce_all<T, Op>(dst, sources, parts, n, divisor);
}

#if defined(__x86_64__) && !defined(__AVX2__)
// The same code with wider registers; AVX2 only, without FMA, so that nothing is contracted.
template <class T, reduce_op Op>
[[gnu::target("avx2")]] void reduce_avx2(T* dst, const void* const* sources, std::size_t parts,
                                         std::size_t n, int divisor) noexcept {
    reduce_all<T, Op>(dst, sources, parts, n, divisor);
}
[[nodiscard]] inline bool has_avx2() noexcept {
    static const bool found = __builtin_cpu_supports("avx2") != 0;
    return found;
}
#endif

template <class T, reduce_op Op>
void reduce_typed(void* dst, const void* const* sources, std::size_t parts, std::size_t n,
                  int divisor) noexcept {
#if defined(__x86_64__) && !defined(__AVX2__)
    if (has_avx2()) return reduce_avx2<T, Op>(static_cast<T*>(dst), sources, parts, n, divisor);
#endif
    reduce_plain<T, Op>(static_cast<T*>(dst), sources, parts, n, divisor);
}

template <class T>
void reduce_any_op(void* dst, const void* const* sources, std::size_t parts, std::size_t n,
                   reduce_op op, int divisor) noexcept {
    switch (op) {
    case reduce_op::sum: return reduce_typed<T, reduce_op::sum>(dst, sources, parts, n, divisor);
    case reduce_op::mean: return reduce_typed<T, reduce_op::mean>(dst, sources, parts, n, divisor);
    case reduce_op::max: return reduce_typed<T, reduce_op::max>(dst, sources, parts, n, divisor);
    case reduce_op::min: return reduce_typed<T, reduce_op::min>(dst, sources, parts, n, divisor);
    }
}

} // namespace detail

} // namespace skein::dist

// ======== skein/dist/half.hpp
// Many bfloat16 or half values to float32 and back: exact one way, to nearest even the other.
//
//     std::vector<f16_t> halves = ...;
//     std::vector<float> wide(halves.size());
//     widen(wide.data(), halves.data(), dtype::f16, wide.size());
//     narrow(halves.data(), dtype::f16, wide.data(), wide.size());     // the same bits again
//
// Halves go through the processor's instructions (F16C) where it has them, else through to_f16()
// and to_float(): the same bits, some ten times slower.


#include <cstddef>

namespace skein::dist {

/// to[i] = from[i]; n elements of f32, bf16 or f16. No overlap.
void widen(float* to, const void* from, dtype type, std::size_t n) noexcept;

/// to[i] = from[i], rounded to nearest even; n elements of f32, bf16 or f16. No overlap.
void narrow(void* to, dtype type, const float* from, std::size_t n) noexcept;

namespace detail {

void widen_f16_plain(float* to, const f16_t* from, std::size_t n) noexcept;
void narrow_f16_plain(f16_t* to, const float* from, std::size_t n) noexcept;
[[nodiscard]] bool has_f16c() noexcept;
/// Only where has_f16c().
void widen_f16_f16c(float* to, const f16_t* from, std::size_t n) noexcept;
void narrow_f16_f16c(f16_t* to, const float* from, std::size_t n) noexcept;

} // namespace detail
} // namespace skein::dist


// ======== skein/dist/detail/half.ipp
// The loops of widen() and narrow().


#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace skein::dist {

namespace detail {

SKEIN_INLINE void widen_f16_plain(float* to, const f16_t* from, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
}
SKEIN_INLINE void narrow_f16_plain(f16_t* to, const float* from, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) to[i] = to_f16(from[i]);
}

#if defined(__x86_64__)
// The compilers' own names for the instructions: <immintrin.h> is ten times what this file needs.
using eight_floats = float __attribute__((vector_size(32)));
using eight_halves = short __attribute__((vector_size(16)));

SKEIN_INLINE bool has_f16c() noexcept {
    static const bool found = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        // AVX as well: it says that the system keeps the wide registers.
        return __builtin_cpu_supports("avx") != 0 && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
               (c & bit_F16C) != 0;
    }();
    return found;
}
[[gnu::target("avx,f16c")]] SKEIN_INLINE void widen_f16_f16c(float* to, const f16_t* from,
                                                             std::size_t n) noexcept {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        eight_halves halves;
        std::memcpy(&halves, from + i, sizeof halves);
        const eight_floats floats = __builtin_ia32_vcvtph2ps256(halves);
        std::memcpy(to + i, &floats, sizeof floats);
    }
    widen_f16_plain(to + i, from + i, n - i);
}
[[gnu::target("avx,f16c")]] SKEIN_INLINE void narrow_f16_f16c(f16_t* to, const float* from,
                                                              std::size_t n) noexcept {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        eight_floats floats;
        std::memcpy(&floats, from + i, sizeof floats);
        const eight_halves halves = __builtin_ia32_vcvtps2ph256(floats, 0); // to nearest even
        std::memcpy(static_cast<void*>(to + i), &halves, sizeof halves);
    }
    narrow_f16_plain(to + i, from + i, n - i);
}
#else
SKEIN_INLINE bool has_f16c() noexcept { return false; }
SKEIN_INLINE void widen_f16_f16c(float* to, const f16_t* from, std::size_t n) noexcept {
    widen_f16_plain(to, from, n);
}
SKEIN_INLINE void narrow_f16_f16c(f16_t* to, const float* from, std::size_t n) noexcept {
    narrow_f16_plain(to, from, n);
}
#endif

SKEIN_INLINE void widen_bf16(float* to, const bf16_t* from, std::size_t n) noexcept {
    zip(to, from, from, n, [](bf16_t x, bf16_t) { return to_float(x); });
}
SKEIN_INLINE void narrow_bf16(bf16_t* to, const float* from, std::size_t n) noexcept {
    zip(to, from, from, n, [](float x, float) { return to_bf16(x); });
}

} // namespace detail

SKEIN_INLINE void widen(float* to, const void* from, dtype type, std::size_t n) noexcept {
    if (n == 0) return;
    switch (type) {
    case dtype::f32: std::memcpy(to, from, n * sizeof(float)); return;
    case dtype::bf16: return detail::widen_bf16(to, static_cast<const bf16_t*>(from), n);
    case dtype::f16: {
        const auto* const halves = static_cast<const f16_t*>(from);
        if (detail::has_f16c()) return detail::widen_f16_f16c(to, halves, n);
        return detail::widen_f16_plain(to, halves, n);
    }
    default: SKEIN_CHECK(false, "{} is not widened to f32", to_string(type));
    }
}

SKEIN_INLINE void narrow(void* to, dtype type, const float* from, std::size_t n) noexcept {
    if (n == 0) return;
    switch (type) {
    case dtype::f32: std::memcpy(to, from, n * sizeof(float)); return;
    case dtype::bf16: return detail::narrow_bf16(static_cast<bf16_t*>(to), from, n);
    case dtype::f16: {
        auto* const halves = static_cast<f16_t*>(to);
        if (detail::has_f16c()) return detail::narrow_f16_f16c(halves, from, n);
        return detail::narrow_f16_plain(halves, from, n);
    }
    default: SKEIN_CHECK(false, "f32 is not narrowed to {}", to_string(type));
    }
}

} // namespace skein::dist


// ======== skein/dist/detail/reduce.ipp, continued
#include <algorithm>
#include <cstring>

namespace skein::dist {

namespace detail {

/// reduce_wide() for any way to ask for source number s.
template <class Source>
void reduce_widened(void* dst, dtype to, std::size_t parts, Source source, std::size_t n,
                    reduce_op op, int divisor) noexcept {
    alignas(64) float sum[block], more[block]; // in the first-level cache
    for (std::size_t i = 0; i < n; i += block) {
        const std::size_t here = std::min(block, n - i);
        const auto from = [&](std::size_t s) {
            const operand o = source(s);
            return operand{static_cast<const std::byte*>(o.data) + i * size_of(o.type), o.type};
        };
        widen(sum, from(0).data, from(0).type, here);
        for (std::size_t s = 1; s < parts; ++s) {
            widen(more, from(s).data, from(s).type, here);
            const void* const both[2] = {sum, more};
            const bool last = s + 1 == parts;
            const reduce_op now = op == reduce_op::mean && !last ? reduce_op::sum : op;
            reduce_any_op<float>(sum, both, 2, here, now, divisor);
        }
        narrow(static_cast<std::byte*>(dst) + i * size_of(to), to, sum, here);
    }
}

} // namespace detail

SKEIN_INLINE void reduce_wide(void* dst, dtype to, std::span<const operand> sources, std::size_t n,
                              reduce_op op, int divisor) noexcept {
    SKEIN_CHECK(sources.size() >= 2 ||
                    (!sources.empty() && (op != reduce_op::mean || divisor == 1)),
                "{} sources with divisor {}", sources.size(), divisor);
    detail::reduce_widened(
        dst, to, sources.size(), [&](std::size_t s) { return sources[s]; }, n, op, divisor);
}

SKEIN_INLINE void reduce(void* dst, dtype to, std::span<const void* const> sources, std::size_t n,
                         dtype type, reduce_op op, int divisor) noexcept {
    if (to == type) return reduce(dst, sources, n, type, op, divisor);
    SKEIN_CHECK(sources.size() >= 2 ||
                    (!sources.empty() && (op != reduce_op::mean || divisor == 1)),
                "{} sources with divisor {}", sources.size(), divisor);
    const auto source = [&](std::size_t s) { return operand{sources[s], type}; };
    detail::reduce_widened(dst, to, sources.size(), source, n, op, divisor);
}

SKEIN_INLINE void reduce(void* dst, std::span<const void* const> sources, std::size_t n, dtype type,
                         reduce_op op, int divisor) noexcept {
    SKEIN_CHECK(!sources.empty() && type != dtype::u8, "a reduction needs sources and numbers");
    if (n == 0) return;
    if (sources.size() == 1 && (op != reduce_op::mean || divisor == 1)) {
        if (dst != sources[0]) std::memcpy(dst, sources[0], n * size_of(type));
        return;
    }
    SKEIN_CHECK(sources.size() >= 2, "the mean of one source with divisor {}", divisor);
    switch (type) {
    case dtype::f32:
        return detail::reduce_any_op<float>(dst, sources.data(), sources.size(), n, op, divisor);
    case dtype::bf16:
        return detail::reduce_any_op<bf16_t>(dst, sources.data(), sources.size(), n, op, divisor);
    case dtype::f64:
        return detail::reduce_any_op<double>(dst, sources.data(), sources.size(), n, op, divisor);
    case dtype::i64:
        return detail::reduce_any_op<std::int64_t>(dst, sources.data(), sources.size(), n, op,
                                                   divisor);
    case dtype::f16: {
        const auto source = [&](std::size_t s) { return operand{sources[s], type}; };
        return detail::reduce_widened(dst, type, sources.size(), source, n, op, divisor);
    }
    case dtype::u8: return;
    }
}

SKEIN_INLINE void reduce(void* dst, const void* a, const void* b, std::size_t n, dtype type,
                         reduce_op op, int divisor) noexcept {
    const void* const sources[2] = {a, b};
    reduce(dst, sources, n, type, op, divisor);
}

} // namespace skein::dist


// ======== skein/dist/detail/ring_core.ipp, continued
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::dist {

/// What runs on the loop; abort() from another thread reaches it only through the loop.
class ring_communicator::core {
public:
    core(std::shared_ptr<links> net, std::vector<int> group, int position, ring_options pieces,
         collective_options limits, int divisor)
        : net_(std::move(net)), group_(std::move(group)), position_(position), pieces_(pieces),
          deadline_(limits.deadline), divisor_(divisor > 0 ? divisor : size()),
          here_(loop::current()) {}

    [[nodiscard]] int size() const noexcept { return static_cast<int>(group_.size()); }
    [[nodiscard]] int position() const noexcept { return position_; }
    [[nodiscard]] loop& on() const noexcept { return here_; }
    void set_deadline(time_span limit) noexcept { deadline_ = limit; }
    void set_tag(collective_tag tag) { tag_ = tag.pack(); }
    void set_outer(detail::op_kind kind) noexcept { outer_ = kind; }
    void on_failure(unique_function<void(const error&)> listener) {
        if (failed_)
            listener(*failed_);
        else
            failure_listener_ = std::move(listener);
    }

    task<void> connect_neighbours();
    task<void> all_reduce(buffer_view in, buffer_view out, reduce_op op);
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op);
    task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts, reduce_op op);
    task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                buffer_view out, reduce_op op);
    task<void> all_gather(buffer_view in, buffer_view out);
    task<void> all_gather_v(buffer_view in, buffer_view out, std::span<const std::size_t> counts);
    task<void> broadcast(buffer_view io, int root);
    task<void> barrier();
    task<void> agree(detail::signature what);
    task<std::shared_ptr<group_memory>> allocate(std::size_t bytes, memory_kind kind);
    task<void> send(buffer_view io, int to);
    task<void> recv(buffer_view io, int from);
    task<void> close();
    /// The first error wins, goes to both neighbours, and ends what runs.
    void fail(error why);

private:
    struct slice {
        std::size_t at = 0, count = 0; // elements
    };
    struct plan;
    class late_watch;

    /// The world rank at a place of the ring.
    [[nodiscard]] int label(int place) const {
        SKEIN_CHECK(place >= 0 && place < size(), "rank {} of {}", place, size());
        return group_[static_cast<std::size_t>(place)];
    }
    [[nodiscard]] int next() const { return label((position_ + 1) % size()); }
    [[nodiscard]] int previous() const { return label((position_ + size() - 1) % size()); }

    // one collective (detail/ring_steps.ipp)
    void begin(detail::signature what);
    task<void> run(plan& p);
    task<void> run_sender(plan& p);
    task<void> run_receiver(plan& p);
    task<void> gather(plan& p, buffer_view own);
    task<void> wait_for_place(const plan& p, std::uint32_t frame, int step);
    void add(const plan& p, std::uint32_t frame, std::byte* dst);
    void prepare(plan& p);
    task<void> send_frame(std::uint32_t step, byte_span data);
    task<void> receive_frame(std::uint32_t step, std::size_t n, std::byte* direct);
    task<void> read_frame(std::uint32_t step, std::size_t n, std::byte* direct);
    void check_frame(const detail::ring_header& h, std::uint32_t step, std::size_t n) const;
    std::vector<slice> even_slices(std::size_t count, std::size_t width) const;
    std::vector<slice> equal_slices(std::size_t count) const;
    static std::vector<slice> uneven_slices(std::span<const std::size_t> counts);
    plan reduction(buffer_view in, dtype into, reduce_op op, bool in_place) const;
    static constexpr time_constants times = time_constants::lan();
    static constexpr std::uint32_t first_word = 0xffffffff; // the frame that opens a chain

    // failing (detail/ring_failure.ipp)
    task<void> finish_in_time(task<void> work);
    task<void> judge(error why, int late_rank);
    task<void> watch_next();
    task<void> tell_neighbours(error why);
    task<void> wait_until_told();
    task<void> wait_for_failure();
    task<error> read_notice(net::stream& s, detail::ring_header h, int from, byte_span already);
    [[nodiscard]] error blamed(errc code, int culprit, const std::string& what) const;
    [[nodiscard]] std::string where() const;
    void throw_if_failed() const;

    std::shared_ptr<links> net_;
    std::vector<int> group_; // world ranks
    int position_;
    ring_options pieces_;
    time_span deadline_;
    int divisor_;
    loop& here_;
    net::stream* out_ = nullptr; // to the next; its other direction carries notices to us
    net::stream* in_ = nullptr;  // from the previous; its other direction carries our notices

    // the running collective
    detail::signature doing_;
    detail::op_kind outer_ = detail::op_kind::none;
    std::uint64_t tag_ = 0;
    bool busy_ = false;    // a collective or message runs
    bool writing_ = false; // in the middle of a frame: nothing else may be written to out_
    bool heard_ = false;   // the previous rank has begun this collective
    cancel_source stop_;   // ends it
    event quiet_;          // set while nothing runs
    wait_queue moved_;     // progress inside it
    byte_buffer scratch_, work_;

    // the end
    bool next_left_ = false;
    bool closed_ = false;
    std::optional<error> failed_;
    event failure_known_, neighbours_told_;
    unique_function<void(const error&)> failure_listener_;
    scope tasks_;
};

} // namespace skein::dist

// ======== skein/dist/detail/ring_failure.ipp
// How a ring fails and ends.
//
// The first error wins, goes to both neighbours, and ends what runs.


namespace skein::dist {

/// Looks at the deadline who has not done his part, and ends the collective if it is a neighbour.
class ring_communicator::core::late_watch final : public timer_node {
public:
    explicit late_watch(core& c)
        : timer_node([](timer_node& t) { static_cast<late_watch&>(t).look(); }), owner_(c) {}
    /// The world rank that is to blame; negative: none that is known.
    [[nodiscard]] int culprit() const noexcept { return culprit_; }

private:
    void look() {
        if (std::exchange(first_, false)) { // this thread may be the late one: look again
            owner_.here_.set_timer(*this, owner_.here_.now() + times.ring_late_again);
            return;
        }
        // A neighbour that has not begun, or does not read, is to blame. If it has, the cause is
        // further away, and its news may still be on the way.
        if (!owner_.heard_)
            culprit_ = owner_.previous();
        else if (owner_.writing_)
            culprit_ = owner_.next();
        else
            return;
        owner_.stop_.request();
    }

    core& owner_;
    bool first_ = true;
    int culprit_ = -1;
};

/// Runs a collective to its end or to the failure of the group, within the deadline.
SKEIN_INLINE task<void> ring_communicator::core::finish_in_time(task<void> body) {
    late_watch watch(*this);
    const time_point until = deadline_after(here_.now(), deadline_);
    const time_span grace =
        std::min<duration>(deadline_ / 4 + times.ring_grace_least, times.ring_grace_most);
    if (doing_.kind != detail::op_kind::message) here_.set_timer(watch, until);

    auto stoppable = with_cancel(stop_.token(), std::move(body));
    auto limited = with_deadline(std::move(stoppable), until + grace);
    auto outcome = as_result(std::move(limited));
    auto ended = co_await std::move(outcome);
    watch.cancel();
    busy_ = false;
    quiet_.set();
    if (ended) co_return;
    auto judging = judge(ended.error(), watch.culprit());
    co_await std::move(judging);
    throw_if_failed();
}

/// Makes the end of a collective the failure of the group, with the right rank to blame.
SKEIN_INLINE task<void> ring_communicator::core::judge(error why, int late_rank) {
    if (failed_) co_return;
    const bool message = doing_.kind == detail::op_kind::message;
    if (late_rank < 0 && why.code() == errc::timeout) {
        late_rank = message ? static_cast<int>(doing_.detail) : previous();
    }
    if (late_rank >= 0) {
        const auto late =
            fmt::format("it has not done its part within {:.3g} s", to_seconds(deadline_));
        fail(blamed(errc::timeout, late_rank, late));
        co_return;
    }
    if (why.code() == errc::peer_lost && size() > 2) {
        // The neighbour may only be the messenger of a failure further away.
        auto news = with_timeout(wait_for_failure(), times.ring_news);
        auto settled = as_result(std::move(news));
        auto ignored = co_await std::move(settled);
        (void)ignored;
    }
    if (!failed_) fail(why);
}

SKEIN_INLINE task<void> ring_communicator::core::wait_for_failure() {
    auto known = failure_known_.wait();
    co_await known;
}

/// Listens on the silent direction of the link to the next rank, as long as the group lives.
SKEIN_INLINE task<void> ring_communicator::core::watch_next() {
    std::array<std::byte, detail::ring_header::size> head{};
    auto reading = as_result(detail::read_exact(*out_, head));
    auto got = co_await std::move(reading);
    if (closed_ || (!got && got.error().code() == errc::cancelled)) co_return;
    if (!got) {
        fail(blamed(errc::peer_lost, next(), got.error().what()));
        co_return;
    }
    const auto h = detail::ring_header::decode(head.data());
    if (!h) {
        fail(h.error());
    } else if (h->kind == detail::ring_kind::bye) {
        next_left_ = true; // what runs now can still end well: the next rank has done its part
    } else {
        auto notice = as_result(read_notice(*out_, *h, next(), byte_span{}));
        auto why = co_await std::move(notice);
        fail(why ? *why : why.error());
    }
}

/// The error that a notice carries. already: bytes behind the header that have been read.
SKEIN_INLINE task<error> ring_communicator::core::read_notice(net::stream& s, detail::ring_header h,
                                                              int from, byte_span already) {
    if (h.kind != detail::ring_kind::abort) {
        co_return blamed(errc::peer_lost, from, "it has closed its communicator");
    }
    byte_buffer body(std::min(h.bytes, detail::ring_header::max_notice));
    const std::size_t have = std::min(already.size(), body.size());
    std::copy_n(already.begin(), have, body.begin());
    auto rest = detail::read_exact(s, mut_byte_span(body).subspan(have));
    co_await std::move(rest);
    co_return detail::decode_abort(body, fmt::format("rank {}", from));
}

SKEIN_INLINE void ring_communicator::core::fail(error why) {
    if (failed_ || closed_) return;
    failed_ = why;
    failure_known_.set();
    stop_.request();
    if (failure_listener_) failure_listener_(why);
    tasks_.spawn(tell_neighbours(std::move(why)));
}

SKEIN_INLINE task<void> ring_communicator::core::tell_neighbours(error why) {
    auto pause = quiet_.wait();
    co_await pause;
    const byte_buffer notice = detail::abort_notice(why);
    if (in_ != nullptr) {
        auto up = as_result(with_timeout(detail::write_exact(*in_, notice), times.ring_notice));
        auto ignored = co_await std::move(up);
        (void)ignored;
        in_->close_send();
    }
    if (out_ != nullptr && !writing_) { // in the middle of a frame nothing can be said downstream
        auto down = as_result(with_timeout(detail::write_exact(*out_, notice), times.ring_notice));
        auto ignored = co_await std::move(down);
        (void)ignored;
    }
    if (out_ != nullptr) out_->close_send();
    neighbours_told_.set();
}

SKEIN_INLINE task<void> ring_communicator::core::close() {
    if (closed_) co_return;
    if (!failed_ && in_ != nullptr && out_ != nullptr && !writing_) {
        const byte_buffer bye = detail::bye_notice();
        auto up = as_result(with_timeout(detail::write_exact(*in_, bye), times.ring_notice));
        auto first = co_await std::move(up);
        (void)first;
        auto down = as_result(with_timeout(detail::write_exact(*out_, bye), times.ring_notice));
        auto second = co_await std::move(down);
        (void)second;
    }
    const bool was_failed = failed_.has_value();
    closed_ = true;
    if (was_failed) { // the notices get their time
        auto patience = as_result(with_timeout(wait_until_told(), times.ring_goodbye));
        auto ignored = co_await std::move(patience);
        (void)ignored;
    }
    tasks_.cancel();
    auto joined = as_result(shield(tasks_.join()));
    auto ignored = co_await std::move(joined);
    (void)ignored;
    auto stopping = net_->stop();
    co_await std::move(stopping);
    in_ = out_ = nullptr;
}

SKEIN_INLINE task<void> ring_communicator::core::wait_until_told() {
    auto done = neighbours_told_.wait();
    co_await done;
}

SKEIN_INLINE error ring_communicator::core::blamed(errc code, int culprit,
                                                   const std::string& what) const {
    return error(code,
                 fmt::format("rank {} failed in {}: {}", culprit, detail::describe(doing_), what));
}

SKEIN_INLINE std::string ring_communicator::core::where() const {
    return fmt::format("rank {}, {}", label(position_), detail::describe(doing_));
}

SKEIN_INLINE void ring_communicator::core::throw_if_failed() const {
    if (failed_) throw detail::error_at(*failed_, where());
}

} // namespace skein::dist

// ======== skein/dist/detail/ring_steps.ipp
// One collective of a ring as frames.
//
// A collective is a row of frames on each link: step s, piece i. In a reducing step rank r sends
// slice r-1-s and adds what it receives to slice r-2-s, so that slice c starts at rank c+1 and is
// complete at rank c. In a gathering step t it sends slice r-t and receives r-1-t. So a frame may
// be sent as soon as the same piece of the step before has arrived: sender and receiver run side by
// side, coupled only by the number of frames received.


// ======== skein/dist/detail/host_call.hpp
// A call of a collective as its signature, for models that work in the host's memory. Checked:
// sizes that do not fit are a bug of the caller; memory that is not the host's is
// errc::not_supported.


#include <cstddef>
#include <span>

namespace skein::dist::detail {

[[nodiscard]] signature all_reduce_call(buffer_view io, reduce_op op);
[[nodiscard]] signature reduce_scatter_call(buffer_view in, buffer_view out, reduce_op op,
                                            int ranks);
[[nodiscard]] signature reduce_scatter_v_call(buffer_view io, std::span<const std::size_t> counts,
                                              reduce_op op, int ranks);
/// With the result in `out` of `rank`.
[[nodiscard]] signature reduce_scatter_v_call(buffer_view io, std::span<const std::size_t> counts,
                                              buffer_view out, reduce_op op, int rank, int ranks);
[[nodiscard]] signature all_gather_call(buffer_view in, buffer_view out, int ranks);
[[nodiscard]] signature all_gather_v_call(buffer_view in, buffer_view out,
                                          std::span<const std::size_t> counts, int rank, int ranks);
[[nodiscard]] signature broadcast_call(buffer_view io, int root, int ranks);
[[nodiscard]] signature barrier_call();
[[nodiscard]] signature allocate_call(std::size_t bytes, memory_kind kind);
/// The send or recv of `rank` with `peer`.
[[nodiscard]] signature message_call(buffer_view io, int peer, int rank, int ranks);

} // namespace skein::dist::detail


// ======== skein/dist/detail/host_call.ipp
// The checks of collectives, once for all models.


#include <fmt/core.h>

namespace skein::dist::detail {

SKEIN_INLINE void require_host(buffer_view view) {
    if (view.where.is_cpu()) return;
    throw error(
        errc::not_supported,
        fmt::format("not supported: this communicator works in the host's memory, the buffer "
                    "is on {}",
                    to_string(view.where)))
        .with_hint("copy it to the host, or choose a communicator for that device");
}

SKEIN_INLINE signature call_of(op_kind kind, buffer_view of, reduce_op op = reduce_op::sum) {
    require_host(of);
    signature s;
    s.kind = kind;
    s.count = of.count;
    s.type = s.into = of.type;
    s.op = op;
    return s;
}

SKEIN_INLINE signature all_reduce_call(buffer_view io, reduce_op op) {
    SKEIN_CHECK(io.type != dtype::u8, "u8 can be copied but not reduced");
    return call_of(op_kind::all_reduce, io, op);
}

SKEIN_INLINE signature reduce_scatter_call(buffer_view in, buffer_view out, reduce_op op,
                                           int ranks) {
    SKEIN_CHECK(in.type == out.type && in.type != dtype::u8 &&
                    in.count == out.count * static_cast<std::size_t>(ranks),
                "reduce_scatter of {} elements into {} on {} ranks", in.count, out.count, ranks);
    require_host(out);
    return call_of(op_kind::reduce_scatter, in, op);
}

SKEIN_INLINE signature reduce_scatter_v_call(buffer_view io, std::span<const std::size_t> counts,
                                             reduce_op op, int ranks) {
    std::size_t total = 0;
    for (const std::size_t c : counts) total += c;
    SKEIN_CHECK(counts.size() == static_cast<std::size_t>(ranks) && io.type != dtype::u8 &&
                    io.count == total,
                "reduce_scatter_v: {} counts for {} ranks, they add up to {}, io has {} x {}",
                counts.size(), ranks, total, to_string(io.type), io.count);
    signature s = call_of(op_kind::reduce_scatter_v, io, op);
    s.detail = hash_counts(counts);
    return s;
}

SKEIN_INLINE signature reduce_scatter_v_call(buffer_view io, std::span<const std::size_t> counts,
                                             buffer_view out, reduce_op op, int rank, int ranks) {
    signature s = reduce_scatter_v_call(io, counts, op, ranks);
    const std::size_t own = counts[static_cast<std::size_t>(rank)];
    SKEIN_CHECK((is_half(io.type) || io.type == dtype::f32) && out.type == dtype::f32 &&
                    out.count == own,
                "reduce_scatter_v of {} into {} x {}, the own part has {}", to_string(io.type),
                to_string(out.type), out.count, own);
    require_host(out);
    s.into = out.type;
    return s;
}

SKEIN_INLINE signature all_gather_call(buffer_view in, buffer_view out, int ranks) {
    SKEIN_CHECK(in.type == out.type && out.count == in.count * static_cast<std::size_t>(ranks),
                "all_gather of {} elements into {} on {} ranks", in.count, out.count, ranks);
    require_host(in);
    return call_of(op_kind::all_gather, out);
}

SKEIN_INLINE signature all_gather_v_call(buffer_view in, buffer_view out,
                                         std::span<const std::size_t> counts, int rank, int ranks) {
    SKEIN_CHECK(counts.size() == static_cast<std::size_t>(ranks) && in.type == out.type &&
                    in.count == counts[static_cast<std::size_t>(rank)],
                "all_gather_v: {} counts for {} ranks, own part {}", counts.size(), ranks,
                in.count);
    std::size_t total = 0;
    for (const std::size_t c : counts) total += c;
    SKEIN_CHECK(out.count == total, "all_gather_v: counts add up to {}, out has {}", total,
                out.count);
    require_host(in);
    signature s = call_of(op_kind::all_gather_v, out);
    s.detail = hash_counts(counts);
    return s;
}

SKEIN_INLINE signature broadcast_call(buffer_view io, int root, int ranks) {
    SKEIN_CHECK(root >= 0 && root < ranks, "broadcast from rank {} of {}", root, ranks);
    signature s = call_of(op_kind::broadcast, io);
    s.detail = static_cast<std::uint64_t>(root);
    return s;
}

SKEIN_INLINE signature barrier_call() {
    signature s;
    s.kind = op_kind::barrier;
    s.type = s.into = dtype::u8;
    return s;
}

SKEIN_INLINE signature allocate_call(std::size_t bytes, memory_kind kind) {
    SKEIN_CHECK(bytes > 0, "memory of {} bytes", bytes);
    signature s;
    s.kind = op_kind::allocate;
    s.type = s.into = dtype::u8;
    s.count = bytes;
    s.detail = static_cast<std::uint64_t>(kind);
    return s;
}

SKEIN_INLINE signature message_call(buffer_view io, int peer, int rank, int ranks) {
    SKEIN_CHECK(peer >= 0 && peer < ranks && peer != rank,
                "send or recv of rank {} with rank {} of {}", rank, peer, ranks);
    signature s = call_of(op_kind::message, io);
    s.detail = static_cast<std::uint64_t>(peer);
    return s;
}

} // namespace skein::dist::detail


// ======== skein/dist/detail/ring_steps.ipp, continued
#include <cstring>

namespace skein::dist {

struct ring_communicator::core::plan {
    /// What the ranks bring, as one buffer that slices cut; only reducing steps read it.
    std::byte* source = nullptr;
    /// Where the sum of the own slice goes; chains and gathering steps do not write it.
    std::byte* own = nullptr;
    /// What slices are gathered into, or broadcast in.
    std::byte* whole = nullptr;
    dtype type = dtype::f32; // of source: what the first step sends
    dtype wide = dtype::f32; // of partial sums: what the other reducing steps send
    dtype into = dtype::f32; // of own and whole
    reduce_op op = reduce_op::sum;
    bool in_place = true; // partial sums lie where the source lay (wide == type), else in work_
    std::vector<slice> slices;
    int reducing = 0; // so many steps reduce, before the gathering ones
    int gathering = 0;
    bool chain = false; // broadcast: one step from root along the ring, forwarding
    int root = 0;
    // filled in by prepare()
    std::size_t piece = 0;      // elements
    std::uint32_t per_step = 0; // frames
    std::uint32_t frames = 0;
    std::size_t half_bytes = 0; // bytes of one of the two places for partial sums
    std::byte* partial = nullptr;
    std::uint32_t received = 0, sent = 0;

    [[nodiscard]] int step_of(std::uint32_t frame) const {
        return static_cast<int>(frame / per_step);
    }
    /// The part of a slice that a frame carries.
    [[nodiscard]] slice part(std::uint32_t frame, const slice& s) const {
        const std::size_t from = std::min(s.count, (frame % per_step) * piece);
        return slice{from, std::min(piece, s.count - from)};
    }
    /// As what a step's elements travel.
    [[nodiscard]] dtype type_of(int step) const {
        if (chain || step >= reducing) return into;
        return step == 0 ? type : wide;
    }
    [[nodiscard]] std::byte* at_source(const slice& s, const slice& part) const {
        return source + (s.at + part.at) * size_of(type);
    }
    [[nodiscard]] std::byte* at_whole(const slice& s, const slice& part) const {
        return whole + (s.at + part.at) * size_of(into);
    }
    /// The partial sums that reducing step `step` makes of slice s: two places in turn.
    [[nodiscard]] std::byte* at_partial(int step, const slice& s, const slice& part) const {
        if (in_place) return at_source(s, part);
        return partial + static_cast<std::size_t>(step & 1) * half_bytes + part.at * size_of(wide);
    }
};

SKEIN_INLINE std::vector<ring_communicator::core::slice> ring_communicator::core::even_slices(
    std::size_t count, std::size_t width) const {
    const std::size_t ranks = group_.size(), line = 64 / width;
    const std::size_t share = ((count + ranks - 1) / ranks + line - 1) / line * line;
    std::vector<slice> out_slices;
    for (std::size_t p = 0; p < ranks; ++p) {
        const std::size_t from = std::min(p * share, count), to = std::min(from + share, count);
        out_slices.push_back(slice{from, to - from});
    }
    return out_slices;
}

/// The same number of elements for every rank.
SKEIN_INLINE std::vector<ring_communicator::core::slice> ring_communicator::core::equal_slices(
    std::size_t count) const {
    std::vector<slice> slices;
    for (std::size_t r = 0; r < group_.size(); ++r) slices.push_back(slice{r * count, count});
    return slices;
}

SKEIN_INLINE std::vector<ring_communicator::core::slice> ring_communicator::core::uneven_slices(
    std::span<const std::size_t> counts) {
    std::vector<slice> slices;
    std::size_t at = 0;
    for (const std::size_t c : counts) {
        slices.push_back(slice{at, c});
        at += c;
    }
    return slices;
}

/// The reducing steps over `in`. in_place: partial sums may overwrite it, if they have its type.
/// Only sums need to be wider: the maximum of two halves is a half.
SKEIN_INLINE ring_communicator::core::plan ring_communicator::core::reduction(buffer_view in,
                                                                              dtype into,
                                                                              reduce_op op,
                                                                              bool in_place) const {
    const bool adds = op == reduce_op::sum || op == reduce_op::mean;
    plan p;
    p.source = in.begin();
    p.type = in.type;
    p.wide = is_half(in.type) && adds ? dtype::f32 : in.type;
    p.into = into;
    p.op = op;
    p.in_place = in_place && p.wide == p.type;
    p.reducing = size() - 1;
    return p;
}

SKEIN_INLINE task<void> ring_communicator::core::connect_neighbours() {
    SKEIN_CHECK(size() >= 2, "a ring of {} ranks", size());
    const time_point until = deadline_after(here_.now(), deadline_);
    auto opening = net_->to(next(), links::ring, until);
    out_ = co_await std::move(opening);
    auto waiting = net_->from(previous(), links::ring, until);
    in_ = co_await std::move(waiting);
    quiet_.set();
    tasks_.spawn(watch_next());
}

SKEIN_INLINE void ring_communicator::core::begin(detail::signature what) {
    SKEIN_CHECK(!busy_, "two collectives at a time on rank {}", label(position_));
    const bool message = what.kind == detail::op_kind::message;
    what.sequence = doing_.sequence + (message ? 0 : 1);
    what.outer = outer_;
    what.tag = tag_;
    doing_ = what;
    throw_if_failed();
    if (closed_) throw error(errc::closed, "this communicator is closed").with_where(where());
    if (next_left_ && !message) {
        fail(blamed(errc::peer_lost, next(), "it has closed its communicator"));
        throw_if_failed();
    }
    busy_ = true;
    heard_ = false;
    quiet_.reset();
    stop_ = cancel_source();
}

SKEIN_INLINE void ring_communicator::core::prepare(plan& p) {
    std::size_t longest = 0, widest = size_of(p.type);
    for (const slice& s : p.slices) longest = std::max(longest, s.count);
    if (p.reducing > 1) widest = std::max(widest, size_of(p.wide));
    if (p.gathering > 0) widest = std::max(widest, size_of(p.into));
    const std::size_t bytes = pieces_.piece_bytes / 64 * 64;
    SKEIN_CHECK(bytes > 0 && bytes < (std::size_t{1} << 31), "pieces of {} bytes",
                pieces_.piece_bytes);
    p.piece = bytes / widest;
    p.per_step =
        static_cast<std::uint32_t>(std::max<std::size_t>(1, (longest + p.piece - 1) / p.piece));
    p.frames = p.per_step * static_cast<std::uint32_t>(p.chain ? 1 : p.reducing + p.gathering);
    const std::size_t head = 64 + std::max<std::size_t>(bytes, detail::ring_header::max_notice);
    if (scratch_.size() < head) scratch_.resize(head);
    if (p.in_place || p.reducing < 2) return;
    p.half_bytes = longest * size_of(p.wide);
    const std::size_t places = p.reducing > 2 ? 2 : 1;
    if (work_.size() < places * p.half_bytes) work_.resize(places * p.half_bytes);
    p.partial = work_.data();
}

SKEIN_INLINE task<void> ring_communicator::core::run(plan& p) {
    prepare(p);
    auto both = all(run_sender(p), run_receiver(p));
    auto done = co_await std::move(both);
    (void)done;
}

/// One frame to the next rank: step f, the given bytes of the user's buffer.
SKEIN_INLINE task<void> ring_communicator::core::send_frame(std::uint32_t step, byte_span data) {
    std::array<std::byte, detail::ring_header::size> head{};
    detail::ring_header h;
    h.what = doing_;
    h.step = step;
    h.bytes = static_cast<std::uint32_t>(data.size());
    h.encode(head.data());
    const std::array<byte_span, 2> batch{byte_span(head), data};
    writing_ = true;
    auto wrote = as_result(out_->write_all(std::span(batch).first(data.empty() ? 1 : 2)));
    auto result = co_await std::move(wrote);
    if (!result) {
        if (result.error().code() == errc::cancelled) throw result.error();
        throw blamed(errc::peer_lost, next(), result.error().what());
    }
    writing_ = false;
}

SKEIN_INLINE task<void> ring_communicator::core::run_sender(plan& p) {
    if (p.chain) { // says that this rank has come, also to the root
        auto here_i_am = send_frame(first_word, byte_span{});
        co_await std::move(here_i_am);
        if ((position_ + 1) % size() == p.root) co_return;
    }
    const bool is_root = p.chain && position_ == p.root;
    const int ranks = size();
    for (std::uint32_t f = 0; f < p.frames; ++f) {
        // What has to be here before frame f can leave.
        const std::uint32_t lag = p.chain ? 0 : p.per_step; // the same piece, one step earlier
        const std::uint32_t need = is_root || f < lag ? 0 : f + 1 - lag;
        while (p.received < need) {
            auto more = moved_.wait();
            co_await more;
        }
        const int step = p.step_of(f);
        const int back = step < p.reducing ? 1 + step : step - p.reducing;
        const slice s =
            p.chain
                ? p.slices[0]
                : p.slices[static_cast<std::size_t>((position_ - back % ranks + ranks) % ranks)];
        const slice part = p.part(f, s);
        const std::byte* const from = p.chain || step >= p.reducing ? p.at_whole(s, part)
                                      : step == 0                   ? p.at_source(s, part)
                                                  : p.at_partial(step - 1, s, part);
        auto sending = send_frame(f, byte_span(from, part.count * size_of(p.type_of(step))));
        co_await std::move(sending);
        p.sent = f + 1;
        moved_.wake_all();
    }
}

/// Waits until the place for the partial sums of frame f is free: the step before the last one has
/// been sent. No cycle of waits: each rank would have to be a step behind the one before it.
SKEIN_INLINE task<void> ring_communicator::core::wait_for_place(const plan& p, std::uint32_t frame,
                                                                int step) {
    const bool kept = step + 1 < p.reducing;
    while (kept && step >= 2 && p.sent + p.per_step < frame + 1) {
        auto more = moved_.wait();
        co_await more;
    }
}

/// The elements of frame f, which lie behind the header in scratch, and the own ones, to dst.
SKEIN_INLINE void ring_communicator::core::add(const plan& p, std::uint32_t frame, std::byte* dst) {
    const int step = p.step_of(frame), back = 2 + step, ranks = size();
    const slice s = p.slices[static_cast<std::size_t>((position_ - back % ranks + ranks) % ranks)];
    const slice part = p.part(frame, s);
    const operand mine{p.at_source(s, part), p.type};
    const operand theirs{scratch_.data() + 64, p.type_of(step)};
    const bool last = step + 1 == p.reducing;
    const reduce_op op = p.op == reduce_op::mean && !last ? reduce_op::sum : p.op;
    const dtype to = last ? p.into : p.wide;
    // Rank 0 puts its own value first, so that two ranks always compute p0 + p1.
    const bool own_first = position_ == 0;
    const operand both[2] = {own_first ? mine : theirs, own_first ? theirs : mine};
    if (to == p.type && theirs.type == p.type)
        reduce(dst, both[0].data, both[1].data, part.count, to, op, divisor_);
    else
        reduce_wide(dst, to, both, part.count, op, divisor_);
}

SKEIN_INLINE task<void> ring_communicator::core::run_receiver(plan& p) {
    if (p.chain) {
        auto receiving = receive_frame(first_word, 0, nullptr);
        co_await std::move(receiving);
        if (position_ == p.root) co_return;
    }
    const int ranks = size();
    for (std::uint32_t f = 0; f < p.frames; ++f) {
        const int step = p.step_of(f);
        const bool reduces = !p.chain && step < p.reducing;
        const int back = reduces ? 2 + step : 1 + step - p.reducing;
        const slice s =
            p.chain
                ? p.slices[0]
                : p.slices[static_cast<std::size_t>((position_ - back % ranks + ranks) % ranks)];
        const slice part = p.part(f, s);
        const std::size_t n = part.count * size_of(p.type_of(step));
        auto receiving = receive_frame(f, n, reduces ? nullptr : p.at_whole(s, part));
        co_await std::move(receiving);
        if (reduces && n > 0) {
            if (!p.in_place) {
                auto place = wait_for_place(p, f, step);
                co_await std::move(place);
            }
            add(p, f,
                step + 1 == p.reducing ? p.own + part.at * size_of(p.into)
                                       : p.at_partial(step, s, part));
        }
        p.received = f + 1;
        moved_.wake_all();
    }
}

/// read_frame, with the neighbour to blame when the stream breaks.
SKEIN_INLINE task<void> ring_communicator::core::receive_frame(std::uint32_t step, std::size_t n,
                                                               std::byte* direct) {
    auto reading = as_result(read_frame(step, n, direct));
    auto came = co_await std::move(reading);
    if (came) co_return;
    const errc code = came.error().code();
    if (code == errc::reset || code == errc::closed || code == errc::io) {
        throw blamed(errc::peer_lost, previous(), came.error().what());
    }
    throw came.error();
}

/// Reads frame number `step` of `n` bytes from the previous rank, into `direct` or behind the
/// header in scratch + 64. Throws what a notice says, mismatch, or the error of the stream.
SKEIN_INLINE task<void> ring_communicator::core::read_frame(std::uint32_t step, std::size_t n,
                                                            std::byte* direct) {
    constexpr std::size_t head_size = detail::ring_header::size, head_at = 64 - head_size;
    // Small payloads come with their header in one read.
    const bool together = direct == nullptr || n <= 4096;
    std::byte* const buffer = scratch_.data() + head_at;
    const std::size_t wanted = head_size + (together ? n : 0);
    std::size_t have = 0;
    while (have < head_size) {
        auto some = in_->read_some(mut_byte_span(buffer + have, wanted - have));
        const std::size_t got = co_await std::move(some);
        if (got == 0) throw error(errc::reset, "the connection ended");
        have += got;
    }
    const auto h = detail::ring_header::decode(buffer).value();
    if (h.kind != detail::ring_kind::data) {
        auto notice =
            read_notice(*in_, h, previous(), byte_span(buffer + head_size, have - head_size));
        const error why = co_await std::move(notice);
        fail(why);
        throw why;
    }
    check_frame(h, step, n);
    heard_ = true;
    if (together) {
        auto rest = detail::read_exact(*in_, mut_byte_span(buffer + have, wanted - have));
        co_await std::move(rest);
        if (direct != nullptr && n > 0) std::memcpy(direct, scratch_.data() + 64, n);
    } else {
        auto rest = detail::read_exact(*in_, mut_byte_span(direct, n));
        co_await std::move(rest);
    }
}

/// Throws mismatch if the previous rank is not where this one is.
SKEIN_INLINE void ring_communicator::core::check_frame(const detail::ring_header& h,
                                                       std::uint32_t step, std::size_t n) const {
    if (h.what != doing_) {
        const bool first = previous() < label(position_);
        throw detail::mismatch_error(first ? previous() : label(position_), first ? h.what : doing_,
                                     first ? label(position_) : previous(),
                                     first ? doing_ : h.what);
    }
    if (h.step != step || h.bytes != n) {
        throw error(errc::mismatch,
                    fmt::format("rank {} sent piece {} of {} bytes, rank {} expected piece "
                                "{} of {}",
                                previous(), h.step, h.bytes, label(position_), step, n))
            .with_hint("are the ranks the same build with the same ring_options?");
    }
}

/// `own` into its slice of p, then everybody's into all slices.
SKEIN_INLINE task<void> ring_communicator::core::gather(plan& p, buffer_view own) {
    std::byte* const slot = p.at_whole(p.slices[static_cast<std::size_t>(position_)], slice{});
    if (own.count > 0 && slot != own.begin()) std::memcpy(slot, own.data, own.bytes());
    p.gathering = size() - 1;
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::all_reduce(buffer_view in, buffer_view out,
                                                            reduce_op op) {
    auto what = detail::all_reduce_call(in, op);
    what.into = out.type;
    begin(what);
    if (in.bytes() > pieces_.small_bytes) {
        plan p = reduction(in, out.type, op, true);
        p.slices = even_slices(in.count, size_of(in.type));
        p.whole = out.begin();
        p.own = p.at_whole(p.slices[static_cast<std::size_t>(position_)], slice{});
        p.gathering = size() - 1;
        auto work = finish_in_time(run(p));
        co_await std::move(work);
        co_return;
    }
    work_.resize(std::max(work_.size(), in.bytes() * group_.size()));
    plan p;
    p.type = p.into = in.type;
    p.whole = work_.data();
    p.slices = equal_slices(in.count);
    auto gathering = gather(p, in);
    co_await std::move(gathering);
    std::vector<const void*> sources;
    for (const slice& s : p.slices) sources.push_back(p.at_whole(s, slice{}));
    reduce(out.data, out.type, sources, in.count, in.type, op, divisor_);
}

SKEIN_INLINE task<void> ring_communicator::core::reduce_scatter(buffer_view in, buffer_view out,
                                                                reduce_op op) {
    begin(detail::reduce_scatter_call(in, out, op, size()));
    plan p = reduction(in, out.type, op, false);
    p.own = out.begin();
    p.slices = equal_slices(out.count);
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::reduce_scatter_v(
    buffer_view io, std::span<const std::size_t> counts, reduce_op op) {
    begin(detail::reduce_scatter_v_call(io, counts, op, size()));
    plan p = reduction(io, io.type, op, true);
    p.slices = uneven_slices(counts);
    p.own = p.at_source(p.slices[static_cast<std::size_t>(position_)], slice{});
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::reduce_scatter_v(
    buffer_view io, std::span<const std::size_t> counts, buffer_view out, reduce_op op) {
    begin(detail::reduce_scatter_v_call(io, counts, out, op, position_, size()));
    plan p = reduction(io, out.type, op, true);
    p.slices = uneven_slices(counts);
    p.own = out.begin();
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::all_gather(buffer_view in, buffer_view out) {
    begin(detail::all_gather_call(in, out, size()));
    plan p;
    p.type = p.into = in.type;
    p.whole = out.begin();
    p.slices = equal_slices(in.count);
    auto gathering = gather(p, in);
    co_await std::move(gathering);
}

SKEIN_INLINE task<void> ring_communicator::core::all_gather_v(buffer_view in, buffer_view out,
                                                              std::span<const std::size_t> counts) {
    begin(detail::all_gather_v_call(in, out, counts, position_, size()));
    plan p;
    p.type = p.into = in.type;
    p.whole = out.begin();
    p.slices = uneven_slices(counts);
    auto gathering = gather(p, in);
    co_await std::move(gathering);
}

SKEIN_INLINE task<void> ring_communicator::core::broadcast(buffer_view io, int root) {
    auto what = detail::broadcast_call(io, root, size());
    what.detail = static_cast<std::uint64_t>(label(root));
    begin(what);
    plan p;
    p.type = p.into = io.type;
    p.whole = io.begin();
    p.slices.push_back(slice{0, io.count});
    p.chain = true;
    p.root = root;
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

/// Empty slices once around: after N-1 steps everybody has heard of everybody.
SKEIN_INLINE task<void> ring_communicator::core::barrier() { return agree(detail::barrier_call()); }

SKEIN_INLINE task<void> ring_communicator::core::agree(detail::signature what) {
    begin(what);
    plan p;
    p.slices.resize(group_.size());
    p.gathering = size() - 1;
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

/// Private memory: a rank that got none tells the others.
SKEIN_INLINE task<std::shared_ptr<group_memory>> ring_communicator::core::allocate(
    std::size_t bytes, memory_kind kind) {
    const auto what = detail::allocate_call(bytes, kind);
    std::shared_ptr<group_memory> made;
    try {
        made = group_memory::alone(bytes, kind, false);
    } catch (const error& e) {
        fail(detail::no_memory(label(position_), what, e));
    }
    auto meeting = agree(what);
    co_await std::move(meeting);
    co_return made;
}

SKEIN_INLINE task<void> ring_communicator::core::send(buffer_view io, int to) {
    auto what = detail::message_call(io, to, position_, size());
    what.detail = static_cast<std::uint64_t>(label(to));
    begin(what);
    const time_point until = deadline_after(here_.now(), deadline_);
    auto work = finish_in_time(detail::send_message(*net_, io, label(to), doing_, until));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::recv(buffer_view io, int from) {
    auto what = detail::message_call(io, from, position_, size());
    what.detail = static_cast<std::uint64_t>(label(from));
    begin(what);
    const time_point until = deadline_after(here_.now(), deadline_);
    auto work = finish_in_time(detail::recv_message(*net_, io, label(from), doing_, until));
    co_await std::move(work);
}

} // namespace skein::dist


// ======== skein/dist/detail/ring.ipp, continued
#include <memory>
#include <utility>

namespace skein::dist {

SKEIN_INLINE ring_communicator::ring_communicator(std::shared_ptr<core> made) noexcept
    : core_(std::move(made)) {}
SKEIN_INLINE ring_communicator::~ring_communicator() = default;

SKEIN_INLINE task<std::unique_ptr<ring_communicator>> ring_communicator::connect(
    std::shared_ptr<links> net, std::vector<int> group, int position, ring_options pieces,
    collective_options limits, int divisor) {
    auto ring = std::unique_ptr<ring_communicator>(new ring_communicator(std::make_shared<core>(
        std::move(net), std::move(group), position, pieces, limits, divisor)));
    auto connecting = as_result(ring->core_->connect_neighbours());
    auto connected = co_await std::move(connecting);
    if (!connected) {
        auto closing = ring->close();
        co_await std::move(closing);
        throw connected.error();
    }
    co_return std::move(ring);
}

SKEIN_INLINE int ring_communicator::rank() const noexcept { return core_->position(); }
SKEIN_INLINE int ring_communicator::world_size() const noexcept { return core_->size(); }
SKEIN_INLINE std::string ring_communicator::name() const {
    return fmt::format("ring x{}", core_->size());
}
SKEIN_INLINE void ring_communicator::set_deadline(time_span limit) noexcept {
    core_->set_deadline(limit);
}
SKEIN_INLINE void ring_communicator::set_tag(collective_tag tag) { core_->set_tag(tag); }

SKEIN_INLINE task<void> ring_communicator::all_reduce(buffer_view io, reduce_op op) {
    return core_->all_reduce(io, io, op);
}
SKEIN_INLINE task<void> ring_communicator::all_reduce_into(buffer_view in, buffer_view out,
                                                           reduce_op op) {
    return core_->all_reduce(in, out, op);
}
SKEIN_INLINE task<void> ring_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                          reduce_op op) {
    return core_->reduce_scatter(in, out, op);
}
SKEIN_INLINE task<void> ring_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            reduce_op op) {
    return core_->reduce_scatter_v(io, counts, op);
}
SKEIN_INLINE task<void> ring_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            buffer_view out, reduce_op op) {
    return core_->reduce_scatter_v(io, counts, out, op);
}
SKEIN_INLINE task<void> ring_communicator::all_gather(buffer_view in, buffer_view out) {
    return core_->all_gather(in, out);
}
SKEIN_INLINE task<void> ring_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                        std::span<const std::size_t> counts) {
    return core_->all_gather_v(in, out, counts);
}
SKEIN_INLINE task<void> ring_communicator::broadcast(buffer_view io, int root) {
    return core_->broadcast(io, root);
}
SKEIN_INLINE task<void> ring_communicator::barrier() { return core_->barrier(); }
SKEIN_INLINE task<std::shared_ptr<group_memory>> ring_communicator::allocate(std::size_t bytes,
                                                                             memory_kind kind) {
    return core_->allocate(bytes, kind);
}
SKEIN_INLINE task<void> ring_communicator::send(buffer_view io, int to) {
    return core_->send(io, to);
}
SKEIN_INLINE task<void> ring_communicator::recv(buffer_view io, int from) {
    return core_->recv(io, from);
}
SKEIN_INLINE task<void> ring_communicator::close() { return core_->close(); }

SKEIN_INLINE void ring_communicator::set_outer(detail::op_kind kind) noexcept {
    core_->set_outer(kind);
}
SKEIN_INLINE task<void> ring_communicator::agree(detail::signature what) {
    return core_->agree(what);
}
SKEIN_INLINE void ring_communicator::on_failure(unique_function<void(const error&)> listener) {
    core_->on_failure(std::move(listener));
}

SKEIN_INLINE void ring_communicator::abort(error why) noexcept {
    try {
        core_->on().post_from_any_thread([weak = std::weak_ptr<core>(core_), why = std::move(why)] {
            if (const auto c = weak.lock()) c->fail(why);
        });
    } catch (...) { // out of memory: the deadline will end it
    }
}

} // namespace skein::dist

// ======== skein/dist/shm.hpp
// Collectives between ranks of one host, through shared memory.
//
// Data passes in cache-sized pieces through two slots per rank. Of every piece rank r reduces its
// own slice over all ranks in rank order, so each element is one sum p0 + p1 + ... on one core, and
// then everybody copies the other slices: 2(N-1)/N of the bytes cross between cores, as in a ring,
// but without a system call. Small operations take one exchange: all publish all, all reduce all.
//
// A small one may begin on the thread that submits it (prompt_start): it says what it brings, looks
// for the others for a moment, and only if they are late goes on where it may sleep.
//
// In memory of the group (allocate) there are no slots: rank r reduces slice r of everybody's
// memory and writes it to everybody's, between two meetings.
//
// Calls block the thread (look for a while, then sleep on a futex), so a rank has a comm thread.
// A waiting rank notices an abort at once, a dead peer process within `slice`, a stalled one at the
// deadline, and names it.


// ======== skein/dist/detail/shm_segment.hpp
// What lies in the segment of a shm_communicator, and who writes what.
//
//     head | rank_block[N] | per rank: small[2] in[2] out[2] | pair_block[N*N] | pair data[N*N][2]
//
// Everything starts as zero bytes. A rank writes only its own block and slots; the abort record is
// written once by whoever wins the exchange on head::aborted. Pages that are never used cost
// nothing.


#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace skein::dist {

/// Sizes of the pieces in which data passes through shared memory.
struct shm_options {
    /// One slot of one rank; two are in flight. Larger than the second cache of a core on purpose:
    /// bytes that the writer's cache has handed down to the shared one arrive twice as fast as
    /// dirty ones (measured on an EPYC: 8 MiB in 0.65 ms with 1 MiB, 1.4 ms with 256 KiB).
    std::size_t chunk_bytes = std::size_t{1} << 20;
    /// Up to here: one exchange, all reduce all. With more than two ranks less, as each reads what
    /// all bring: 2 / N of it, but not below 8 KiB.
    std::size_t small_bytes = std::size_t{64} << 10;
    std::size_t message_bytes = std::size_t{64} << 10; ///< one slot of send/recv
    std::uint32_t first_step = 0; ///< where the counters of steps begin; they wrap around
};

namespace detail {

/// Counters of steps only grow and wrap around; "at least" is a signed distance.
[[nodiscard]] inline bool at_least(std::uint32_t have, std::uint32_t want) noexcept {
    return static_cast<std::int32_t>(have - want) >= 0;
}

struct alignas(128) shm_head {
    std::atomic<std::uint32_t> aborted; ///< 0 no, 1 being written, 2 the error is there
    std::uint32_t error_bytes;
    std::byte error[4096]; ///< detail::abort_body
};

struct alignas(128) shm_rank {
    doorbell bell;
    // Written by the owner, read by all; one cache line travels per step.
    alignas(128) std::atomic<std::uint32_t> arrived; ///< collectives entered
    std::atomic<std::uint32_t> published;            ///< steps whose `in` slot is full
    std::atomic<std::uint32_t>
        reduced; ///< steps in which it has read all `in` slots, `out` is full
    std::atomic<std::uint32_t> fetched; ///< steps in which it has read all `out` slots
    std::atomic<std::int32_t> pid;      ///< 0 until it has joined
    std::atomic<std::uint32_t> left;    ///< 1 after an orderly close
    std::atomic<std::int32_t> core;     ///< 1 + that on which it last did a step, 0 unknown
    alignas(128) signature doing[2];    ///< by parity of the sequence; valid once arrived says so
};

/// One direction between two ranks.
struct alignas(128) shm_pair {
    std::atomic<std::uint32_t> sent; ///< pieces in the slots, by the sender
    std::uint64_t count[2];          ///< of the message the piece belongs to
    dtype type[2];
    alignas(128) std::atomic<std::uint32_t> received; ///< pieces taken, by the receiver
};

static_assert(std::is_trivially_copyable_v<signature>);

/// Where things are, for a number of ranks and a set of options.
class shm_layout {
public:
    shm_layout(int ranks, shm_options o);

    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::size_t chunk_bytes() const noexcept { return chunk_; }
    [[nodiscard]] std::size_t small_bytes() const noexcept { return small_; }
    [[nodiscard]] std::size_t message_bytes() const noexcept { return message_; }

    static shm_head& head(std::byte* m) noexcept { return *reinterpret_cast<shm_head*>(m); }
    static shm_rank& rank(std::byte* m, int r) noexcept {
        return reinterpret_cast<shm_rank*>(m + sizeof(shm_head))[r];
    }
    std::byte* small(std::byte* m, int r, std::uint32_t parity) const noexcept {
        return slots(m, r) + (parity & 1) * small_;
    }
    std::byte* in(std::byte* m, int r, std::uint32_t parity) const noexcept {
        return slots(m, r) + 2 * small_ + (parity & 1) * chunk_;
    }
    std::byte* out(std::byte* m, int r, std::uint32_t parity) const noexcept {
        return slots(m, r) + 2 * small_ + (2 + (parity & 1)) * chunk_;
    }
    shm_pair& pair(std::byte* m, int from, int to) const noexcept {
        return reinterpret_cast<shm_pair*>(m + pairs_at_)[index(from, to)];
    }
    std::byte* message(std::byte* m, int from, int to, std::uint32_t parity) const noexcept {
        return m + messages_at_ + (2 * index(from, to) + (parity & 1)) * message_;
    }

private:
    static std::size_t small_for(int ranks, std::size_t of_two) noexcept;
    static constexpr std::size_t round_up(std::size_t n, std::size_t to) noexcept {
        return (n + to - 1) / to * to;
    }
    std::byte* slots(std::byte* m, int r) const noexcept {
        return m + slots_at_ + static_cast<std::size_t>(r) * per_rank_;
    }
    std::size_t index(int from, int to) const noexcept {
        return static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to);
    }

    std::size_t ranks_, chunk_, small_, message_;
    std::size_t slots_at_ = 0, per_rank_ = 0, pairs_at_ = 0, messages_at_ = 0, bytes_ = 0;
};

} // namespace detail
} // namespace skein::dist


// ======== skein/dist/shm.hpp, continued
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace skein::dist {

namespace detail {
struct memory_word;
}

/// One rank's end. make_segment() on the first rank, attach on the others, join() on all once all
/// have attached (bootstrap.hpp does it).
class shm_communicator final : public communicator, private prompt_start {
public:
    /// labels: the names of the members in messages, empty = 0 .. size-1 (hierarchical: world
    /// ranks).
    shm_communicator(shared_memory segment, int rank, int size, std::vector<int> labels = {},
                     shm_options pieces = {}, collective_options limits = {});
    shm_communicator(const shm_communicator&) = delete;
    shm_communicator& operator=(const shm_communicator&) = delete;
    ~shm_communicator() override;

    [[nodiscard]] static std::size_t segment_bytes(int size, shm_options pieces = {});
    /// Once every member has been constructed: from here on the death of their processes is
    /// noticed.
    void join();

    [[nodiscard]] int rank() const noexcept override { return rank_; }
    [[nodiscard]] int world_size() const noexcept override { return size_; }
    [[nodiscard]] std::string name() const override;
    void set_deadline(time_span limit) noexcept override { deadline_ = limit; }
    void set_tag(collective_tag tag) override { tag_ = tag.pack(); }

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
    [[nodiscard]] prompt_start* prompt() noexcept override { return this; }

    /// The collective that the next ones are parts of; none: they stand alone.
    void set_outer(detail::op_kind kind) noexcept { outer_ = kind; }
    /// Like all_reduce with divisor 1 for mean, but only root's `out` holds the result; io is lost.
    /// out may be io, or f32 for an io of bf16 or f16; the others' out has a type only.
    task<void> reduce_to(buffer_view io, buffer_view out, reduce_op op, int root);

    /// allocate() as a part of a larger group: everywhere is what the memory says of itself.
    task<std::shared_ptr<group_memory>> share(std::size_t bytes, memory_kind kind, bool everywhere);

private:
    using counter = std::atomic<std::uint32_t> detail::shm_rank::*;

    detail::shm_rank& at(int r) const noexcept { return layout_.rank(segment_.data(), r); }
    detail::shm_rank& me() const noexcept { return at(rank_); }
    detail::shm_head& head() const noexcept { return layout_.head(segment_.data()); }
    int label(int r) const noexcept { return labels_[static_cast<std::size_t>(r)]; }

    // doing (detail/shm_steps.ipp)
    void begin(detail::signature what);
    void begin_message(buffer_view io, int peer);
    void announce();
    void wait_for_all_to_agree();
    void bring_small(const std::byte* bytes, std::size_t n);
    void reduce_small(buffer_view in, std::byte* result, dtype into, std::size_t first,
                      std::size_t n, reduce_op op, int divisor);
    struct reduction;
    task<void> reduce_all(detail::signature what, buffer_view in, buffer_view out, reduce_op op,
                          int divisor, int root);
    task<void> reduce_parts(detail::signature what, buffer_view in, buffer_view out,
                            std::span<const std::size_t> counts, reduce_op op);
    void reduce_steps(reduction r);
    void take_small(const std::byte* in, std::byte* out, std::span<const std::size_t> bytes);
    void gather(const std::byte* in, std::byte* out, std::span<const std::size_t> bytes);
    void publish(counter which, std::uint32_t value) noexcept;

    // in memory that all have mapped (detail/shm_memory.ipp)
    std::vector<detail::memory_word> exchange_words(detail::signature what,
                                                    const detail::memory_word& mine);
    detail::memory_place place_to_reduce(buffer_view io) const;
    detail::memory_place place_to_gather(buffer_view in, buffer_view out,
                                         std::span<const std::size_t> bytes) const;
    void reduce_in_place(detail::memory_place from, std::size_t first, std::size_t n, dtype type,
                         dtype into, reduce_op op, int divisor,
                         std::span<std::byte* const> results);
    void reduce_slices(detail::memory_place place, buffer_view io, reduce_op op, int divisor,
                       int root);
    void gather_in_place(detail::memory_place place, const std::byte* in, std::byte* out,
                         std::span<const std::size_t> bytes);
    task<void> gather_anywhere(detail::signature what, buffer_view in, buffer_view out,
                               std::span<const std::size_t> bytes);
    void broadcast_in_place(detail::memory_place place, buffer_view io, int root);
    void copy_unless_aborted(std::byte* to, const std::byte* from, std::size_t n) const;
    void finish_together();

    // beginning on another thread than the loop's (detail/shm_waiting.ipp)
    struct meeting;
    struct own_loop;
    void begin_here() noexcept override { here_ = true; }
    [[nodiscard]] suspended_start end_here() noexcept override;
    [[nodiscard]] bool all_come_soon() noexcept;
    [[nodiscard]] bool needs_this_core(int r) const noexcept;

    // waiting (detail/shm_waiting.ipp)
    template <class Reached>
    void wait_until(Reached reached);
    void wait_all(counter which, std::uint32_t value);
    template <class Ready, class Reached>
    void still_good(int behind, Ready ready, Reached reached);
    [[noreturn]] void blame(errc code, int culprit, std::string what);
    void throw_if_aborted() const;
    bool is_gone(int r) const noexcept;

    shared_memory segment_;
    detail::shm_layout layout_;
    int rank_, size_;
    std::vector<int> labels_;
    time_span deadline_;
    std::vector<unique_fd> watched_; // pidfd of each member, or none
    std::vector<const void*> sources_;
    std::shared_ptr<detail::memory_table> memory_ = std::make_shared<detail::memory_table>();
    std::uint16_t memories_ = 0; // made so far, the same number on all ranks

    detail::signature doing_; // the running collective; sequence grows for ever
    detail::op_kind outer_ = detail::op_kind::none;
    std::uint64_t tag_ = 0;
    std::uint32_t steps_; // steps finished in all collectives so far
    time_point until_{};
    spin_budget spin_;

    bool short_ = false;     // one exchange: a look would cost more than what the other has to do
    bool here_ = false;      // between begin_here() and end_here()
    suspended_start parked_; // what waits to go on elsewhere
};

} // namespace skein::dist


// ======== skein/dist/detail/shm.ipp
// The collectives of shm_communicator, and its beginning and end.


// ======== skein/dist/detail/shm_memory.ipp
// Memory that the ranks of a segment share beside it, and collectives on what lies in it.
//
// Making it takes two exchanges over the segment: where each rank's memory is, then who has mapped
// it. A collective on it has two meetings: at the first all have come and agree on the place, at
// the second all have done their part. In between rank r alone touches slice r, in all memories, so
// nothing else is needed to keep them apart.


// ======== skein/dist/detail/shm_waiting.ipp
// How a shm_communicator waits for the others, and how it fails.


#include <algorithm>
#include <cerrno>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

namespace skein::dist {

template <class Reached>
void shm_communicator::wait_until(Reached reached) {
    int behind = rank_;
    const auto all_reached = [&] {
        for (int r = 0; r < size_; ++r) {
            if (r != rank_ && !reached(r)) {
                behind = r;
                return false;
            }
        }
        return true;
    };
    // Whoever aborts has stored its counters before: what it has done its part of ends well here
    // too.
    const auto ready = [&] {
        const bool aborted = head().aborted.load(std::memory_order_acquire) != 0;
        return all_reached() || aborted;
    };
    constexpr duration look = time_constants::lan().shm_look;
    const auto worth_looking = [&] { return !short_ || !needs_this_core(behind); };
    const auto check = [&] { still_good(behind, ready, reached); };
    wait_at(me().bell, spin_, look, ready, check, worth_looking);
    if (!all_reached()) throw_if_aborted();
}

/// Everybody has come and says the same. Blocks; on a thread that only begins it looks for a
/// moment.
struct shm_communicator::meeting {
    shm_communicator& comm;
    [[nodiscard]] bool await_ready() const noexcept { return !comm.here_ || comm.all_come_soon(); }
    void await_suspend(std::coroutine_handle<> h) const noexcept { comm.parked_ = {h, false}; }
    void await_resume() const {
        comm.short_ = true; // until the next collective begins
        comm.wait_for_all_to_agree();
    }
};

/// Where a collective goes on that may block for long.
struct shm_communicator::own_loop {
    shm_communicator& comm;
    [[nodiscard]] bool await_ready() const noexcept { return !comm.here_; }
    void await_suspend(std::coroutine_handle<> h) const noexcept { comm.parked_ = {h, true}; }
    void await_resume() const noexcept {}
};

SKEIN_INLINE suspended_start shm_communicator::end_here() noexcept {
    here_ = false;
    return std::exchange(parked_, {});
}

/// It last ran where this thread runs: while this one looks, that one cannot come.
SKEIN_INLINE bool shm_communicator::needs_this_core(int r) const noexcept {
    const auto mine = this_core();
    return mine >= 0 && at(r).core.load(std::memory_order_relaxed) == mine + 1;
}

/// A look of a microsecond or two: who submits may have work to do, and who has not waits for the
/// ticket, and looks on there. An abort is something to go on with, too.
SKEIN_INLINE bool shm_communicator::all_come_soon() noexcept {
    constexpr int brief = 64;
    const auto now_at = static_cast<std::uint32_t>(doing_.sequence);
    int behind = 0;
    for (int left = brief;; --left) {
        while (behind < size_ &&
               (behind == rank_ ||
                detail::at_least(at(behind).arrived.load(std::memory_order_acquire), now_at))) {
            ++behind;
        }
        if (behind == size_ || head().aborted.load(std::memory_order_acquire) != 0) {
            if (left < brief) spin_.paid();
            return true;
        }
        if (left <= 0 || (left == brief && needs_this_core(behind))) return false;
        cpu_pause();
    }
}

SKEIN_INLINE void shm_communicator::wait_all(counter which, std::uint32_t value) {
    wait_until([&](int r) {
        return detail::at_least((at(r).*which).load(std::memory_order_acquire), value);
    });
}

/// Called between sleeps: throws if waiting for `behind` makes no sense any more. A rank may do its
/// part, leave and end while this one looks at it: hence the second look at what it did.
template <class Ready, class Reached>
void shm_communicator::still_good(int behind, Ready ready, Reached reached) {
    const auto has_left = [&](int r) { return at(r).left.load(std::memory_order_seq_cst) != 0; };
    for (int r = 0; r < size_; ++r) {
        if (r == rank_ || has_left(r)) continue;
        if (is_gone(r) && !has_left(r) && !ready()) {
            blame(
                errc::peer_lost, r,
                fmt::format("its process {} has ended", at(r).pid.load(std::memory_order_relaxed)));
        }
    }
    if (has_left(behind) && !reached(behind)) {
        blame(errc::peer_lost, behind, "it has closed its communicator");
    }
    if (steady_now() < until_) return;
    const auto now_at = static_cast<std::uint32_t>(doing_.sequence);
    for (int r = 0; r < size_; ++r) { // who is really missing, not who waits for the missing one
        if (!detail::at_least(at(r).arrived.load(std::memory_order_acquire), now_at)) behind = r;
    }
    blame(errc::timeout, behind,
          fmt::format("it has not done its part within {:.3g} s", to_seconds(deadline_)));
}

SKEIN_INLINE void shm_communicator::blame(errc code, int culprit, std::string what) {
    error why(code, fmt::format("rank {} failed in {}: {}", label(culprit),
                                detail::describe(doing_), what));
    abort(why);
    throw_if_aborted(); // an earlier abort by somebody else wins
    throw why;
}

SKEIN_INLINE bool shm_communicator::is_gone(int r) const noexcept {
    if (watched_.empty()) return false;
    const int pid = at(r).pid.load(std::memory_order_relaxed);
    if (pid == ::getpid()) return false;
    const int fd = watched_[static_cast<std::size_t>(r)].get();
    if (fd < 0) return ::kill(pid, 0) != 0 && errno == ESRCH;
    pollfd ask{fd, POLLIN, 0};
    return ::poll(&ask, 1, 0) > 0; // readable = the process has ended
}

SKEIN_INLINE void shm_communicator::abort(error why) noexcept {
    auto& h = head();
    std::uint32_t expected = 0;
    if (h.aborted.compare_exchange_strong(expected, 1, std::memory_order_seq_cst)) {
        static_assert(sizeof h.error == detail::most_abort_bytes);
        h.error_bytes = 0;
        try {
            const byte_buffer body = detail::abort_body(why);
            std::copy(body.begin(), body.end(), h.error);
            h.error_bytes = static_cast<std::uint32_t>(body.size());
        } catch (const std::bad_alloc&) {} // the others learn that there was an abort, not why
        h.aborted.store(2, std::memory_order_seq_cst);
    }
    for (int r = 0; r < size_; ++r) at(r).bell.ring_always();
}

SKEIN_INLINE void shm_communicator::throw_if_aborted() const {
    std::uint32_t phase = head().aborted.load(std::memory_order_acquire);
    if (phase == 0) return;
    // Phase 1 takes a microsecond, unless the writer died in it.
    for (int i = 0; phase == 1 && i < 1'000'000; ++i) {
        cpu_pause();
        phase = head().aborted.load(std::memory_order_acquire);
    }
    const std::string where = fmt::format("rank {}, {}", label(rank_), detail::describe(doing_));
    if (phase == 1) throw error(errc::aborted, "a rank died while it aborted").with_where(where);
    const std::size_t written = std::min<std::size_t>(head().error_bytes, sizeof head().error);
    error why = detail::decode_abort(byte_span(head().error, written), "a rank");
    if (why.where().empty()) why.with_where(where);
    throw why;
}

} // namespace skein::dist


// ======== skein/dist/detail/shm_memory.ipp, continued
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace skein::dist {

namespace detail {

/// One rank's word while memory is made: where its own is, or why there is none.
struct memory_word {
    std::uint16_t failed; // an errc, 0 = good
    char text[510];

    static memory_word good(const std::string& path) { return of(0, path); }
    static memory_word bad(const error& why) {
        return of(static_cast<std::uint16_t>(why.code()),
                  why.text() + (why.cause().empty() ? "" : ": " + why.cause()));
    }

private:
    static memory_word of(std::uint16_t failed, const std::string& text) {
        memory_word w{};
        w.failed = failed;
        std::copy_n(text.data(), std::min(text.size(), sizeof w.text - 1), w.text);
        return w;
    }
};

} // namespace detail

/// The words of all ranks. If one of them failed, that is the error of all, and the group's end.
SKEIN_INLINE std::vector<detail::memory_word> shm_communicator::exchange_words(
    detail::signature what, const detail::memory_word& mine) {
    begin(what);
    std::vector<detail::memory_word> words(static_cast<std::size_t>(size_));
    const std::vector<std::size_t> bytes(words.size(), sizeof mine);
    gather(reinterpret_cast<const std::byte*>(&mine), reinterpret_cast<std::byte*>(words.data()),
           bytes);
    for (std::size_t r = 0; r < words.size(); ++r) {
        if (words[r].failed == 0) continue;
        error why(static_cast<errc>(words[r].failed),
                  fmt::format("rank {} failed in {}: {}", label(static_cast<int>(r)),
                              detail::describe(doing_), words[r].text));
        abort(why);
        throw why;
    }
    return words;
}

SKEIN_INLINE task<std::shared_ptr<group_memory>> shm_communicator::share(std::size_t bytes,
                                                                         memory_kind kind,
                                                                         bool everywhere) {
    const auto what = detail::allocate_call(bytes, kind);
    const bool makes = kind == memory_kind::own || rank_ == 0;
    shared_memory mine;
    auto word = detail::memory_word::good("");
    try {
        if (makes) {
            mine = shared_memory::create(bytes);
            word = detail::memory_word::good(mine.path());
        }
    } catch (const error& e) { // the others learn it in the exchange
        word = detail::memory_word::bad(e);
    }
    const auto words = exchange_words(what, word);

    std::vector<shared_memory> maps(kind == memory_kind::own ? words.size() : 1);
    word = detail::memory_word::good("");
    try {
        for (std::size_t r = 0; r < maps.size(); ++r) {
            const bool is_mine = makes && r == static_cast<std::size_t>(rank_);
            if (!is_mine) maps[r] = shared_memory::attach(words[r].text, bytes);
        }
    } catch (const error& e) {
        word = detail::memory_word::bad(e);
    }
    (void)exchange_words(what, word);
    mine.hide();
    const std::size_t place = kind == memory_kind::own ? static_cast<std::size_t>(rank_) : 0;
    if (makes) maps[place] = std::move(mine);
    auto made = std::shared_ptr<group_memory>(
        new group_memory(bytes, kind, everywhere, std::move(maps), place));
    SKEIN_CHECK(memories_ < 0xffff, "{} memories of one communicator", memories_);
    memory_->add(*made, ++memories_);
    made->listed_ = memory_;
    co_return made;
}

SKEIN_INLINE task<std::shared_ptr<group_memory>> shm_communicator::allocate(std::size_t bytes,
                                                                            memory_kind kind) {
    return share(bytes, kind, true);
}

/// The place of a buffer that is to be reduced, for the signature.
SKEIN_INLINE detail::memory_place shm_communicator::place_to_reduce(buffer_view io) const {
    const auto place = memory_->find(io);
    SKEIN_CHECK(place.memory == nullptr || place.memory->kind() == memory_kind::own,
                "common memory holds one value for all ranks: there is nothing to reduce in it");
    return place;
}

/// Where the ranks find what is gathered: in the memory that `out` lies in, else in that of `in`,
/// if every rank has something there.
SKEIN_INLINE detail::memory_place shm_communicator::place_to_gather(
    buffer_view in, buffer_view out, std::span<const std::size_t> bytes) const {
    auto place = memory_->find(out);
    if (place.memory != nullptr) return place;
    if (std::find(bytes.begin(), bytes.end(), std::size_t{0}) != bytes.end()) return {};
    place = memory_->find(in);
    if (place.memory == nullptr || place.memory->kind() == memory_kind::common) return {};
    place.input = true;
    return place;
}

/// The second meeting; one step of all counters.
SKEIN_INLINE void shm_communicator::finish_together() {
    steps_ += 1;
    me().published.store(steps_, std::memory_order_relaxed);
    me().fetched.store(steps_, std::memory_order_relaxed);
    publish(&detail::shm_rank::reduced, steps_); // the release of all of it
    wait_all(&detail::shm_rank::reduced, steps_);
}

/// Reduces n elements behind element `first` of the memory of all ranks, in rank order, block by
/// block, to each of `results`.
SKEIN_INLINE void shm_communicator::reduce_in_place(detail::memory_place from, std::size_t first,
                                                    std::size_t n, dtype type, dtype into,
                                                    reduce_op op, int divisor,
                                                    std::span<std::byte* const> results) {
    announce();
    wait_for_all_to_agree();
    const std::size_t width = size_of(type), to = size_of(into);
    constexpr std::size_t hot = std::size_t{16} << 10; // reduced and copied in the first cache
    const std::size_t some = hot / width;
    sources_.resize(static_cast<std::size_t>(size_));
    for (std::size_t i = 0; i < n; i += some) {
        const std::size_t here = std::min(some, n - i);
        for (int p = 0; p < size_; ++p) {
            sources_[static_cast<std::size_t>(p)] =
                from.memory->of(p) + from.offset + (first + i) * width;
        }
        reduce(results[0] + i * to, into, sources_, here, type, op, divisor);
        for (const auto& other : results.subspan(1))
            std::memcpy(other + i * to, results[0] + i * to, here * to);
        throw_if_aborted();
    }
    finish_together();
}

/// Every rank reduces its slice, to `root` or to everybody.
SKEIN_INLINE void shm_communicator::reduce_slices(detail::memory_place place, buffer_view io,
                                                  reduce_op op, int divisor, int root) {
    const std::size_t width = size_of(io.type), line = 64 / width;
    const auto ranks = static_cast<std::size_t>(size_), mine = static_cast<std::size_t>(rank_);
    const std::size_t share = ((io.count + ranks - 1) / ranks + line - 1) / line * line;
    const std::size_t first = std::min(mine * share, io.count);
    const std::size_t n = std::min(share, io.count - first);
    std::vector<std::byte*> results;
    for (int p = 0; p < size_; ++p) {
        if (root >= 0 ? p == root : p != rank_)
            results.push_back(place.memory->of(p) + place.offset + first * width);
    }
    if (root < 0) results.insert(results.begin(), io.slice(first, 0).begin());
    reduce_in_place(place, first, n, io.type, io.type, op, divisor, results);
}

/// All-gather when `out` lies in memory of the group, or `in` does, at `place`.
SKEIN_INLINE void shm_communicator::gather_in_place(detail::memory_place place, const std::byte* in,
                                                    std::byte* out,
                                                    std::span<const std::size_t> bytes) {
    const auto starts = detail::starts_of(bytes);
    const auto mine = static_cast<std::size_t>(rank_);
    const bool common = place.memory->kind() == memory_kind::common;
    const auto put_own = [&] {
        if (bytes[mine] > 0 && in != out + starts[mine])
            std::memmove(out + starts[mine], in, bytes[mine]);
    };
    if (!common) put_own(); // nobody reads this memory between two collectives
    announce();
    wait_for_all_to_agree();
    if (common) put_own();
    for (std::size_t p = 0; p < bytes.size() && !common; ++p) {
        if (p == mine) continue;
        const std::byte* const theirs =
            place.memory->of(static_cast<int>(p)) + place.offset + (place.input ? 0 : starts[p]);
        copy_unless_aborted(out + starts[p], theirs, bytes[p]);
    }
    finish_together();
}

SKEIN_INLINE task<void> shm_communicator::gather_anywhere(detail::signature what, buffer_view in,
                                                          buffer_view out,
                                                          std::span<const std::size_t> bytes) {
    const auto place = place_to_gather(in, out, bytes);
    what.memory = place.word();
    begin(what);
    // Small parts pass faster in one exchange; but what is common is written once, by its owner.
    const bool small = *std::max_element(bytes.begin(), bytes.end()) <= layout_.small_bytes();
    const bool common = place.memory != nullptr && place.memory->kind() == memory_kind::common;
    if (small && !common) {
        bring_small(in.begin(), bytes[static_cast<std::size_t>(rank_)]);
        meeting all_are_here{*this};
        co_await all_are_here;
        take_small(in.begin(), out.begin(), bytes);
        co_return;
    }
    own_loop may_block{*this};
    co_await may_block;
    if (place.memory == nullptr)
        gather(in.begin(), out.begin(), bytes);
    else
        gather_in_place(place, in.begin(), out.begin(), bytes);
}

/// The root's bytes to all others.
SKEIN_INLINE void shm_communicator::broadcast_in_place(detail::memory_place place, buffer_view io,
                                                       int root) {
    announce();
    wait_for_all_to_agree();
    if (place.memory->kind() == memory_kind::common) return; // all have come: it is there
    if (rank_ != root)
        copy_unless_aborted(io.begin(), place.memory->of(root) + place.offset, io.bytes());
    finish_together();
}

SKEIN_INLINE void shm_communicator::copy_unless_aborted(std::byte* to, const std::byte* from,
                                                        std::size_t n) const {
    constexpr std::size_t some = std::size_t{1} << 20;
    for (std::size_t i = 0; i < n; i += some) {
        throw_if_aborted();
        std::memcpy(to + i, from + i, std::min(some, n - i));
    }
}

} // namespace skein::dist

// ======== skein/dist/detail/shm_steps.ipp
// How data passes through the segment of a shm_communicator.
//
// A step k of a reduction passes one chunk: publish(k) fills the own `in` slot, reduce(k) combines
// one slice and fills the own `out` slot, fetch(k) copies the other slices. Slots are used by
// parity of k:
//   publish(k) needs reduced >= k-1 of all (step k-2 has been read)
//   reduce(k)  needs published >= k+1 of all, and fetched >= k-1 of all (out of step k-2 has been
//   read) fetch(k)   needs reduced >= k+1 of all
// They run as publish(k+1), reduce(k), fetch(k-1), so nobody waits for a peer that keeps pace.


#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

namespace skein::dist {

SKEIN_INLINE void shm_communicator::begin(detail::signature what) {
    until_ = deadline_after(steady_now(), deadline_);
    what.sequence = doing_.sequence + 1;
    what.outer = outer_;
    what.tag = tag_;
    doing_ = what;
    short_ = false;
    throw_if_aborted();
}

/// Says what this rank is doing. Small slots of this parity are free since all arrived at the last.
SKEIN_INLINE void shm_communicator::announce() {
    me().doing[doing_.sequence & 1] = doing_;
    publish(&detail::shm_rank::arrived, static_cast<std::uint32_t>(doing_.sequence));
}

/// Waits until all have arrived, and compares. A peer may be one collective ahead, not two: hence
/// two signatures.
SKEIN_INLINE void shm_communicator::wait_for_all_to_agree() {
    wait_all(&detail::shm_rank::arrived, static_cast<std::uint32_t>(doing_.sequence));
    for (int r = 0; r < size_; ++r) {
        const detail::signature theirs = at(r).doing[doing_.sequence & 1];
        if (theirs == doing_) continue;
        const bool first = r < rank_;
        auto why = detail::mismatch_error(label(first ? r : rank_), first ? theirs : doing_,
                                          label(first ? rank_ : r), first ? doing_ : theirs);
        abort(why);
        throw why;
    }
}

SKEIN_INLINE void shm_communicator::publish(counter which, std::uint32_t value) noexcept {
    me().core.store(this_core() + 1, std::memory_order_relaxed); // travels with the counter
    (me().*which).store(value, std::memory_order_seq_cst);
    for (int r = 0; r < size_; ++r) {
        if (r != rank_) at(r).bell.ring();
    }
}

/// The first half of an exchange of at most small_bytes of every rank: says what this one brings.
SKEIN_INLINE void shm_communicator::bring_small(const std::byte* bytes, std::size_t n) {
    const auto parity = static_cast<std::uint32_t>(doing_.sequence);
    if (n > 0) std::memcpy(layout_.small(segment_.data(), rank_, parity), bytes, n);
    announce();
}

/// The second half, after the meeting: elements [first, first + n) of all, in rank order.
SKEIN_INLINE void shm_communicator::reduce_small(buffer_view in, std::byte* result, dtype into,
                                                 std::size_t first, std::size_t n, reduce_op op,
                                                 int divisor) {
    const auto parity = static_cast<std::uint32_t>(doing_.sequence);
    if (n == 0 || result == nullptr) return;
    std::array<const void*, 64> few;
    std::vector<const void*> many(size_ > 64 ? static_cast<std::size_t>(size_) : 0);
    const void** sources = size_ > 64 ? many.data() : few.data();
    for (int r = 0; r < size_; ++r) {
        sources[r] = layout_.small(segment_.data(), r, parity) + first * size_of(in.type);
    }
    reduce(result, into, std::span<const void* const>(sources, static_cast<std::size_t>(size_)), n,
           in.type, op, divisor);
}

/// The second half of a gathering: everybody's part to its place.
SKEIN_INLINE void shm_communicator::take_small(const std::byte* in, std::byte* out,
                                               std::span<const std::size_t> bytes) {
    const auto parity = static_cast<std::uint32_t>(doing_.sequence);
    std::size_t at = 0;
    for (std::size_t p = 0; p < bytes.size(); at += bytes[p++]) {
        const bool there = p == static_cast<std::size_t>(rank_) && in == out + at;
        if (bytes[p] == 0 || there) continue;
        std::memcpy(out + at, layout_.small(segment_.data(), static_cast<int>(p), parity),
                    bytes[p]);
    }
}

/// One reduction through the `in` and `out` slots. Slices start on cache lines.
struct shm_communicator::reduction {
    shm_communicator& comm;
    const std::byte* in;
    std::byte* out; // null: nothing of the result is kept here
    std::size_t count;
    dtype type, into; // of `in`, and of the result
    reduce_op op;
    int divisor;
    std::span<const std::size_t> parts; // what each rank gets, in `out`; empty: everybody all of it
    int only_root;                      // whose `out` is filled; negative: everybody's

    std::size_t width = size_of(type), result_width = size_of(into);
    std::size_t ranks = static_cast<std::size_t>(comm.size_);
    std::size_t line = 64 / width;
    std::size_t slice =
        comm.layout_.chunk_bytes() / std::max(width, result_width) / ranks / line * line;
    bool scattered = !parts.empty(); // then a step takes a slice of every part
    std::size_t per_step = scattered ? slice : slice * ranks;
    std::size_t longest = scattered ? *std::max_element(parts.begin(), parts.end()) : count;
    std::uint32_t steps = static_cast<std::uint32_t>((longest + per_step - 1) / per_step);
    std::vector<std::size_t> starts = detail::starts_of(parts);
    std::uint32_t base = comm.steps_;
    std::byte* memory = comm.segment_.data();
    std::size_t mine = static_cast<std::size_t>(comm.rank_);

    struct piece {
        std::size_t at, n, slot; // element in the user's buffer, elements, element in the slot
    };
    [[nodiscard]] piece cut(std::uint32_t k, std::size_t p) const {
        const std::size_t first = k * per_step;
        if (scattered) {
            const std::size_t from = std::min(first, parts[p]);
            return piece{starts[p] + from, std::min(per_step, parts[p] - from), p * slice};
        }
        const std::size_t here = std::min(per_step, count - first);
        const std::size_t share = ((here + ranks - 1) / ranks + line - 1) / line * line;
        const std::size_t from = std::min(p * share, here), to = std::min(from + share, here);
        return piece{first + from, to - from, p * slice};
    }

    void publish_step(std::uint32_t k) {
        comm.wait_all(&detail::shm_rank::reduced, base + k - 1);
        for (std::size_t p = 0; p < ranks; ++p) {
            const piece c = cut(k, p);
            if (p == mine || c.n == 0) continue;
            std::memcpy(comm.layout_.in(memory, comm.rank_, base + k) + c.slot * width,
                        in + c.at * width, c.n * width);
        }
        comm.publish(&detail::shm_rank::published, base + k + 1);
    }

    void reduce_step(std::uint32_t k) {
        comm.wait_all(&detail::shm_rank::published, base + k + 1);
        comm.wait_all(&detail::shm_rank::fetched, base + k - 1);
        const piece c = cut(k, mine);
        std::vector<const void*>& sources = comm.sources_;
        sources.resize(ranks);
        constexpr std::size_t hot = std::size_t{16} << 10; // reduced and copied in the first cache
        const std::size_t some = hot / width;
        for (std::size_t i = 0; i < c.n; i += some) {
            const std::size_t n = std::min(some, c.n - i);
            for (std::size_t p = 0; p < ranks; ++p) {
                sources[p] = p == mine ? in + (c.at + i) * width
                                       : comm.layout_.in(memory, static_cast<int>(p), base + k) +
                                             (c.slot + i) * width;
            }
            std::byte* const handed_out =
                comm.layout_.out(memory, comm.rank_, base + k) + (c.slot + i) * result_width;
            const std::size_t at = scattered ? k * per_step + i : c.at + i;
            std::byte* const result = out != nullptr ? out + at * result_width : handed_out;
            reduce(result, into, sources, n, type, op, divisor);
            if (!scattered && result != handed_out)
                std::memcpy(handed_out, result, n * result_width);
        }
        comm.publish(&detail::shm_rank::reduced, base + k + 1);
    }

    void fetch_step(std::uint32_t k) {
        if (!scattered && (only_root < 0 || only_root == comm.rank_)) {
            comm.wait_all(&detail::shm_rank::reduced, base + k + 1);
            for (std::size_t p = 0; p < ranks; ++p) {
                const piece c = cut(k, p);
                if (p == mine || c.n == 0) continue;
                std::memcpy(out + c.at * result_width,
                            comm.layout_.out(memory, static_cast<int>(p), base + k) +
                                c.slot * result_width,
                            c.n * result_width);
            }
        }
        comm.publish(&detail::shm_rank::fetched, base + k + 1);
    }
};

/// Rank r gets counts[r] elements of the sum, behind those of the ranks before it, in `out`.
SKEIN_INLINE task<void> shm_communicator::reduce_parts(detail::signature what, buffer_view in,
                                                       buffer_view out,
                                                       std::span<const std::size_t> counts,
                                                       reduce_op op) {
    const auto place = place_to_reduce(in);
    what.memory = place.word();
    begin(what);
    const auto mine = static_cast<std::size_t>(rank_);
    const std::size_t before = detail::starts_of(counts)[mine];
    if (in.bytes() <= layout_.small_bytes()) {
        bring_small(in.begin(), in.bytes());
        meeting all_are_here{*this};
        co_await all_are_here;
        reduce_small(in, out.begin(), out.type, before, counts[mine], op, size_);
        co_return;
    }
    own_loop may_block{*this};
    co_await may_block;
    if (place.memory != nullptr) {
        std::byte* const only[] = {out.begin()};
        reduce_in_place(place, before, counts[mine], in.type, out.type, op, size_, only);
        co_return;
    }
    reduce_steps(reduction{.comm = *this,
                           .in = in.begin(),
                           .out = out.begin(),
                           .count = in.count,
                           .type = in.type,
                           .into = out.type,
                           .op = op,
                           .divisor = size_,
                           .parts = counts,
                           .only_root = -1});
}

SKEIN_INLINE void shm_communicator::reduce_steps(reduction r) {
    r.publish_step(0);
    announce();
    wait_for_all_to_agree();
    for (std::uint32_t k = 0; k < r.steps; ++k) {
        if (k + 1 < r.steps) r.publish_step(k + 1);
        r.reduce_step(k);
        if (k > 0) r.fetch_step(k - 1);
    }
    r.fetch_step(r.steps - 1);
    steps_ = r.base + r.steps;
}

/// Every rank r gives bytes[r] and gets all of them, one after the other. `in` is the own part.
SKEIN_INLINE void shm_communicator::gather(const std::byte* in, std::byte* out,
                                           std::span<const std::size_t> bytes) {
    using r = detail::shm_rank;
    const auto mine = static_cast<std::size_t>(rank_);
    const std::size_t longest = *std::max_element(bytes.begin(), bytes.end());
    std::byte* const m = segment_.data();
    const std::vector<std::size_t> starts = detail::starts_of(bytes);

    if (longest <= layout_.small_bytes()) {
        bring_small(in, bytes[mine]);
        wait_for_all_to_agree();
        return take_small(in, out, bytes);
    }

    const std::size_t chunk = layout_.chunk_bytes();
    const auto steps = static_cast<std::uint32_t>((longest + chunk - 1) / chunk);
    const std::uint32_t base = steps_;
    const auto length = [&](std::size_t p, std::uint32_t k) {
        return bytes[p] > k * chunk ? std::min(chunk, bytes[p] - k * chunk) : std::size_t{0};
    };
    const auto publish_step = [&](std::uint32_t k) {
        wait_all(&r::reduced, base + k - 1);
        const std::size_t n = length(mine, k);
        if (n > 0) std::memcpy(layout_.in(m, rank_, base + k), in + k * chunk, n);
        publish(&r::published, base + k + 1);
    };
    publish_step(0);
    announce();
    wait_for_all_to_agree();
    for (std::uint32_t k = 0; k < steps; ++k) {
        if (k + 1 < steps) publish_step(k + 1);
        wait_all(&r::published, base + k + 1);
        for (std::size_t p = 0; p < bytes.size(); ++p) {
            const std::size_t n = length(p, k);
            std::byte* const to = out + starts[p] + k * chunk;
            if (n == 0) continue;
            if (p != mine)
                std::memcpy(to, layout_.in(m, static_cast<int>(p), base + k), n);
            else if (in + k * chunk != to)
                std::memcpy(to, in + k * chunk, n);
        }
        me().fetched.store(base + k + 1, std::memory_order_seq_cst);
        publish(&r::reduced, base + k + 1);
    }
    steps_ = base + steps;
}

} // namespace skein::dist


// ======== skein/dist/detail/shm.ipp, continued
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include <fmt/core.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace skein::dist {

SKEIN_INLINE std::size_t detail::shm_layout::small_for(int ranks, std::size_t of_two) noexcept {
    const std::size_t least = std::min(of_two, std::size_t{8} << 10);
    return std::max(least, of_two * 2 / std::max<std::size_t>(2, static_cast<std::size_t>(ranks)));
}

SKEIN_INLINE detail::shm_layout::shm_layout(int ranks, shm_options o)
    : ranks_(static_cast<std::size_t>(ranks)), chunk_(round_up(o.chunk_bytes, 4096)),
      small_(round_up(small_for(ranks, o.small_bytes), 4096)),
      message_(round_up(o.message_bytes, 4096)) {
    SKEIN_CHECK(ranks >= 1, "shared memory for {} ranks", ranks);
    const std::size_t least = round_up(ranks_ * 1024, 4096);
    if (chunk_ < least) chunk_ = least;
    slots_at_ = round_up(sizeof(shm_head) + ranks_ * sizeof(shm_rank), 4096);
    per_rank_ = 2 * small_ + 4 * chunk_;
    pairs_at_ = slots_at_ + ranks_ * per_rank_;
    messages_at_ = round_up(pairs_at_ + ranks_ * ranks_ * sizeof(shm_pair), 4096);
    bytes_ = messages_at_ + ranks_ * ranks_ * 2 * message_;
}

SKEIN_INLINE shm_communicator::shm_communicator(shared_memory segment, int rank, int size,
                                                std::vector<int> labels, shm_options pieces,
                                                collective_options limits)
    : segment_(std::move(segment)), layout_(size, pieces), rank_(rank), size_(size),
      labels_(std::move(labels)), deadline_(limits.deadline), steps_(pieces.first_step) {
    SKEIN_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
    SKEIN_CHECK(segment_.bytes() == layout_.bytes(), "segment of {} bytes, {} expected",
                segment_.bytes(), layout_.bytes());
    for (int r = static_cast<int>(labels_.size()); r < size; ++r) labels_.push_back(r);
    for (const counter c :
         {&detail::shm_rank::published, &detail::shm_rank::reduced, &detail::shm_rank::fetched}) {
        (me().*c).store(steps_, std::memory_order_relaxed); // before pid, which says it is there
    }
    me().pid.store(::getpid(), std::memory_order_seq_cst);
}
SKEIN_INLINE shm_communicator::~shm_communicator() = default;

SKEIN_INLINE std::size_t shm_communicator::segment_bytes(int size, shm_options pieces) {
    return detail::shm_layout(size, pieces).bytes();
}

SKEIN_INLINE void shm_communicator::join() {
    segment_.hide();
    for (int r = 0; r < size_; ++r) {
        const int pid = at(r).pid.load(std::memory_order_seq_cst);
        SKEIN_CHECK(pid != 0, "rank {} has not attached yet", label(r));
        // Without pidfd_open (before Linux 5.3) the pid is asked instead.
        watched_.emplace_back(
            pid == ::getpid() ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    }
}

SKEIN_INLINE std::string shm_communicator::name() const { return fmt::format("shm x{}", size_); }

SKEIN_INLINE task<void> shm_communicator::all_reduce(buffer_view io, reduce_op op) {
    return reduce_all(detail::all_reduce_call(io, op), io, io, op, size_, -1);
}

SKEIN_INLINE task<void> shm_communicator::reduce_to(buffer_view io, buffer_view out, reduce_op op,
                                                    int root) {
    auto what = detail::all_reduce_call(io, op);
    what.kind = detail::op_kind::reduce;
    what.detail = static_cast<std::uint64_t>(label(root));
    what.into = out.type;
    return reduce_all(what, io, out, op, 1, root);
}

/// To `root`'s out, or everybody's when it is negative.
SKEIN_INLINE task<void> shm_communicator::reduce_all(detail::signature what, buffer_view in,
                                                     buffer_view out, reduce_op op, int divisor,
                                                     int root) {
    // Results go straight into the ranks' memory where they have the type of what lies there.
    const auto place = in.type == out.type ? place_to_reduce(in) : detail::memory_place{};
    what.memory = place.word();
    begin(what);
    if (in.bytes() <= layout_.small_bytes()) {
        bring_small(in.begin(), in.bytes());
        meeting all_are_here{*this};
        co_await all_are_here;
        std::byte* const result = root < 0 || root == rank_ ? out.begin() : nullptr;
        reduce_small(in, result, out.type, 0, in.count, op, divisor);
        co_return;
    }
    own_loop may_block{*this};
    co_await may_block;
    if (place.memory != nullptr) {
        reduce_slices(place, in, op, divisor, root);
    } else {
        reduce_steps(reduction{.comm = *this,
                               .in = in.begin(),
                               .out = out.begin(),
                               .count = in.count,
                               .type = in.type,
                               .into = out.type,
                               .op = op,
                               .divisor = divisor,
                               .parts = {},
                               .only_root = root});
    }
}

SKEIN_INLINE task<void> shm_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                         reduce_op op) {
    const auto what = detail::reduce_scatter_call(in, out, op, size_);
    const std::vector<std::size_t> equal(static_cast<std::size_t>(size_), out.count);
    auto work = reduce_parts(what, in, out, equal, op);
    co_await std::move(work);
}

SKEIN_INLINE task<void> shm_communicator::reduce_scatter_v(buffer_view io,
                                                           std::span<const std::size_t> counts,
                                                           reduce_op op) {
    const auto what = detail::reduce_scatter_v_call(io, counts, op, size_);
    const auto mine = static_cast<std::size_t>(rank_);
    const auto out = io.slice(detail::starts_of(counts)[mine], counts[mine]);
    return reduce_parts(what, io, out, counts, op);
}

SKEIN_INLINE task<void> shm_communicator::reduce_scatter_v(buffer_view io,
                                                           std::span<const std::size_t> counts,
                                                           buffer_view out, reduce_op op) {
    const auto what = detail::reduce_scatter_v_call(io, counts, out, op, rank_, size_);
    return reduce_parts(what, io, out, counts, op);
}

SKEIN_INLINE task<void> shm_communicator::all_gather(buffer_view in, buffer_view out) {
    const auto what = detail::all_gather_call(in, out, size_);
    const std::vector<std::size_t> bytes(static_cast<std::size_t>(size_), in.bytes());
    auto work = gather_anywhere(what, in, out, bytes);
    co_await std::move(work);
}

SKEIN_INLINE task<void> shm_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                       std::span<const std::size_t> counts) {
    const auto what = detail::all_gather_v_call(in, out, counts, rank_, size_);
    std::vector<std::size_t> bytes;
    for (const std::size_t c : counts) bytes.push_back(c * size_of(in.type));
    auto work = gather_anywhere(what, in, out, bytes);
    co_await std::move(work);
}

SKEIN_INLINE task<void> shm_communicator::broadcast(buffer_view io, int root) {
    auto what = detail::broadcast_call(io, root, size_);
    what.detail = static_cast<std::uint64_t>(label(root));
    const auto place = memory_->find(io);
    what.memory = place.word();
    begin(what);
    const bool common = place.memory != nullptr && place.memory->kind() == memory_kind::common;
    const bool small = io.bytes() <= layout_.small_bytes();
    std::vector<std::size_t> bytes(static_cast<std::size_t>(size_), 0);
    bytes[static_cast<std::size_t>(root)] = io.bytes();
    if (small && !common) {
        bring_small(io.begin(), bytes[static_cast<std::size_t>(rank_)]);
        meeting all_are_here{*this};
        co_await all_are_here;
        take_small(io.begin(), io.begin(), bytes);
        co_return;
    }
    own_loop may_block{*this};
    co_await may_block;
    if (place.memory != nullptr)
        broadcast_in_place(place, io, root);
    else
        gather(io.begin(), io.begin(), bytes);
}

SKEIN_INLINE task<void> shm_communicator::barrier() {
    begin(detail::barrier_call());
    announce();
    meeting all_are_here{*this};
    co_await all_are_here;
}

/// Messages have their own counters; they do not count as collectives.
SKEIN_INLINE void shm_communicator::begin_message(buffer_view io, int peer) {
    until_ = deadline_after(steady_now(), deadline_);
    auto what = detail::message_call(io, peer, rank_, size_);
    what.detail = static_cast<std::uint64_t>(label(peer));
    what.sequence = doing_.sequence;
    doing_ = what;
    short_ = false;
    throw_if_aborted();
}

SKEIN_INLINE task<void> shm_communicator::send(buffer_view io, int to) {
    begin_message(io, to);
    auto& pair = layout_.pair(segment_.data(), rank_, to);
    const std::size_t chunk = layout_.message_bytes();
    std::size_t done = 0;
    do {
        const std::uint32_t k = pair.sent.load(std::memory_order_relaxed);
        wait_until([&](int r) {
            return r != to ||
                   detail::at_least(pair.received.load(std::memory_order_acquire), k - 1);
        });
        const std::size_t n = std::min(chunk, io.bytes() - done);
        pair.count[k & 1] = io.count;
        pair.type[k & 1] = io.type;
        if (n > 0)
            std::memcpy(layout_.message(segment_.data(), rank_, to, k), io.begin() + done, n);
        pair.sent.store(k + 1, std::memory_order_seq_cst);
        at(to).bell.ring();
        done += n;
    } while (done < io.bytes());
    co_return;
}

SKEIN_INLINE task<void> shm_communicator::recv(buffer_view io, int from) {
    begin_message(io, from);
    auto& pair = layout_.pair(segment_.data(), from, rank_);
    const std::size_t chunk = layout_.message_bytes();
    std::size_t done = 0;
    do {
        const std::uint32_t k = pair.received.load(std::memory_order_relaxed);
        wait_until([&](int r) {
            return r != from || detail::at_least(pair.sent.load(std::memory_order_acquire), k + 1);
        });
        if (pair.count[k & 1] != io.count || pair.type[k & 1] != io.type) {
            error why(errc::mismatch,
                      fmt::format("rank {} sent {} x {}, rank {} expects {} x {}", label(from),
                                  to_string(pair.type[k & 1]), pair.count[k & 1], label(rank_),
                                  to_string(io.type), io.count));
            abort(why);
            throw why;
        }
        const std::size_t n = std::min(chunk, io.bytes() - done);
        if (n > 0)
            std::memcpy(io.begin() + done, layout_.message(segment_.data(), from, rank_, k), n);
        pair.received.store(k + 1, std::memory_order_seq_cst);
        at(from).bell.ring();
        done += n;
    } while (done < io.bytes());
    co_return;
}

SKEIN_INLINE task<void> shm_communicator::close() {
    me().left.store(1, std::memory_order_seq_cst);
    for (int r = 0; r < size_; ++r) {
        if (r != rank_) at(r).bell.ring();
    }
    co_return;
}

} // namespace skein::dist


// ======== skein/dist/models.hpp, continued
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace skein::spmd {
class rendezvous;
}
namespace skein::net {
class loop_thread;
}

namespace skein::dist {

/// How to make a communicator; the same on every rank, but for `advertise`.
struct comm_options {
    std::string model = "automatic"; ///< or the name of a model
    /// Tells the communicators of a world apart; used once in a generation of it.
    std::string name = "world";
    collective_options limits = {};
    shm_options shm = {};
    ring_options ring = {};
    /// The name or address under which other hosts reach this one. Empty: loopback when all ranks
    /// share this machine's network, else rendezvous::host().
    std::string advertise = {};
    time_span connect_deadline = time_constants::lan().rendezvous_timeout;
    /// What errors call the ranks of this group: their ranks in a larger world, ascending. Empty:
    /// 0, 1, ... split() sets it.
    std::vector<int> labels = {};
};

/// What is known where a communicator is made. Every rank knows the same, but for its own place.
struct comm_site {
    spmd::rendezvous& world;
    const comm_options& options;
    net::loop_thread& worker; ///< what is made lives on its loop
    placement where;
    bool one_network = true; ///< all ranks have the same loopback
    std::string key{};       ///< what the keys of the model's exchanges begin with

    [[nodiscard]] int ranks() const;
    /// What errors call a rank, or several.
    [[nodiscard]] int label(int rank) const;
    [[nodiscard]] std::vector<int> labels_of(const std::vector<int>& ranks) const;
};

/// Whether a model can be used at a site; the same answer on every rank.
struct comm_fit {
    int score = 0;       ///< for automatic; at most 100 for skein's own
    std::string why_not; ///< empty: it can be used
};

/// A way to communicate under a name: whether it fits a site, and how one is made.
struct comm_model {
    std::string name;
    std::function<comm_fit(const comm_site&)> fits;
    /// Every rank calls it at the same time, on its compute thread; it may block.
    std::function<std::unique_ptr<communicator>(const comm_site&)> make;
};

/// For the whole program, before communicators are made. Any thread.
///   errors  already_exists
void add_comm_model(comm_model model);

/// "automatic" and the names of all models, as they were added.
[[nodiscard]] std::vector<std::string> comm_model_names();

/// For command lines and environment variables: the name, if there is such a model.
///   errors  invalid_argument; its hint has all names
[[nodiscard]] result<std::string> checked_comm_model(std::string_view name);

/// The model that options.model means at this site; a world of one rank that asks for a model that
/// needs two gets the stub.
///   errors  not_supported: it does not fit here, and why; invalid_argument: no such model
[[nodiscard]] comm_model choose_comm_model(const comm_site& site);

} // namespace skein::dist


// ======== skein/dist/detail/models.ipp
// The list of models, and the choice among them.


// ======== skein/dist/detail/own_models.ipp
// skein's own models: when each fits, and how it is made from a rendezvous.


// ======== skein/dist/detail/shm_bootstrap.ipp
// How the ranks of one host come to share a segment, over the rendezvous of the whole world.


#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::dist::detail {

/// Every rank of the world calls it; members are the world ranks of this rank's host, ascending.
/// labels: what errors call them. Two exchanges: where the first member's segment is, then who has
/// it. A failure of one rank is the error of all of them.
[[nodiscard]] SKEIN_INLINE std::unique_ptr<shm_communicator> share_segment(
    spmd::rendezvous& world, const std::string& key, const std::vector<int>& members,
    std::vector<int> labels, shm_options pieces, collective_options limits) {
    const int size = static_cast<int>(members.size());
    const auto own = std::find(members.begin(), members.end(), world.rank());
    SKEIN_CHECK(own != members.end(), "rank {} is not a member of its host", world.rank());
    const int mine = static_cast<int>(own - members.begin());

    const std::size_t bytes = shm_communicator::segment_bytes(size, pieces);
    shared_memory segment;
    std::optional<error> failure;
    std::string path;
    try {
        if (mine == 0 && size > 1) {
            segment = shared_memory::create(bytes);
            path = segment.path();
        }
    } catch (const error& e) {
        failure = e;
    }
    const auto paths = world.exchange(key + "/segment", as_bytes(path));

    std::unique_ptr<shm_communicator> comm;
    try {
        if (mine > 0) {
            const std::string from = skein::to_string(paths[static_cast<std::size_t>(members[0])]);
            if (from.empty())
                throw error(errc::io, "the first rank of this host made no shared segment");
            segment = shared_memory::attach(from, bytes);
        }
        if (size > 1 && !failure) {
            comm = std::make_unique<shm_communicator>(std::move(segment), mine, size,
                                                      std::move(labels), pieces, limits);
        }
    } catch (const error& e) {
        failure = e;
    }
    const auto done = world.exchange(key + "/attached",
                                     as_bytes(std::string_view(failure ? failure->what() : "")));
    if (failure) throw *failure;
    for (std::size_t r = 0; r < done.size(); ++r) {
        if (!done[r].empty()) {
            throw error(errc::io, fmt::format("rank {} cannot share memory: {}", r,
                                              skein::to_string(done[r])));
        }
    }
    if (comm) comm->join();
    return comm;
}

} // namespace skein::dist::detail

// ======== skein/dist/hierarchical.hpp
// Collectives over several hosts with several ranks each: shared memory inside, a ring between.
//
// The first rank of each host leads it. An all-reduce sums inside every host in rank order, goes
// around the ring of leaders, and is handed out inside every host; so only one stream of data
// crosses each network link, however many ranks a host has. The order of the sums depends on the
// placement only. Sums of bf16 and f16 leave a host as float32 and are rounded once, behind the
// last addition.
//
// Lost peers inside a host are noticed by shared memory, others by the ring; each side tells the
// other.


#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace skein {
class loop;
}

namespace skein::dist {

class links;
class ring_communicator;
class shm_communicator;

/// One rank's end; its collectives run on the loop `on`. inside: null for the only rank of a host.
/// between: leaders only, when there are two hosts or more; made with divisor = world size. net
/// carries messages between hosts. labels: what errors and net call the ranks; empty = 0 .. size-1.
class hierarchical_communicator final : public communicator {
public:
    hierarchical_communicator(loop& on, placement where, int rank, int world_size,
                              std::unique_ptr<shm_communicator> inside,
                              std::unique_ptr<ring_communicator> between,
                              std::shared_ptr<links> net, collective_options limits = {},
                              std::vector<int> labels = {});
    hierarchical_communicator(const hierarchical_communicator&) = delete;
    hierarchical_communicator& operator=(const hierarchical_communicator&) = delete;
    ~hierarchical_communicator() override;

    [[nodiscard]] int rank() const noexcept override { return rank_; }
    [[nodiscard]] int world_size() const noexcept override { return size_; }
    [[nodiscard]] std::string name() const override;
    void set_deadline(time_span limit) override { deadline_ = limit; }
    void set_tag(collective_tag tag) override;

    task<void> all_reduce(buffer_view io, reduce_op op) override;
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op) override;
    /// Each host's part goes to its leader only, when the ranks of every host are neighbours in
    /// rank order; when they are not, everybody gets everything.
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

private:
    /// What an abort reaches through the loop.
    struct stop_state {
        cancel_source stop;
        std::optional<error> why;
    };
    static void stop_messages(stop_state& s, links* net, const error& why);
    [[nodiscard]] int place_here(int world_rank) const;
    /// Sets what errors say this rank is doing, and how long each part may take. A wait for others
    /// has to outlast theirs, so that the rank that is really missing gets named: ring after host,
    /// the leader's return after the ring.
    void begin(detail::signature what);
    [[nodiscard]] int label(int rank) const { return labels_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] std::string rank_and_call() const;
    [[nodiscard]] time_span patience() const;
    void wait_inside();
    void wait_for_leader();

    /// An error on one side is told to the other before it is thrown.
    task<void> abort_both_on_error(task<void> work);

    task<void> reduce_everywhere(buffer_view io, buffer_view out, reduce_op op);
    task<void> reduce_then_cut(buffer_view in, buffer_view out, reduce_op op);
    task<void> reduce_parts(buffer_view io, std::vector<std::size_t> counts, buffer_view out,
                            reduce_op op);
    task<void> sum_inside(buffer_view io, buffer_view to, reduce_op op);
    task<void> reduce_host_parts(buffer_view io, std::vector<std::size_t> counts, buffer_view out,
                                 reduce_op op);
    [[nodiscard]] bool sums_travel() const noexcept;
    [[nodiscard]] buffer_view place_of_sums(buffer_view io, dtype into, reduce_op op);
    [[nodiscard]] buffer_view floats(std::size_t count);
    [[nodiscard]] bool hosts_are_neighbours() const;
    task<void> gather(buffer_view in, buffer_view out, std::vector<std::size_t> counts);
    [[nodiscard]] std::vector<std::size_t> sums_per_host(
        const std::vector<std::size_t>& counts) const;
    void put_in_rank_order(const std::vector<std::size_t>& counts, std::size_t width,
                           std::byte* out) const;
    task<void> hand_out(buffer_view io, int root);
    task<void> meet_everywhere();
    task<void> make_memory(std::size_t bytes, memory_kind kind,
                           std::shared_ptr<group_memory>* made);
    task<void> message(buffer_view io, int peer, bool sends);

    loop& on_;
    placement where_;
    int rank_, size_;
    std::vector<int> labels_;
    std::unique_ptr<shm_communicator> inside_;
    std::unique_ptr<ring_communicator> between_;
    std::shared_ptr<links> net_;
    time_span deadline_;
    detail::signature doing_;
    std::uint64_t tag_ = 0;
    std::optional<error> failed_;
    std::shared_ptr<stop_state> stopped_ = std::make_shared<stop_state>();
    byte_buffer work_;
    std::vector<float> wide_; // sums of bf16 and f16 on their way between hosts
};

} // namespace skein::dist


// ======== skein/dist/detail/hierarchical.ipp
// Collectives in two levels, and who tells whom of a failure.


// ======== skein/dist/detail/hierarchical_sums.ipp
// Reductions in two levels: inside the hosts, then between them.


#include <algorithm>
#include <cstring>
#include <utility>

namespace skein::dist {

namespace detail {

/// Elements to another place, or the same one.
SKEIN_INLINE void put_elements(buffer_view from, buffer_view to) {
    if (from.count > 0 && from.data != to.data) std::memcpy(to.data, from.data, from.bytes());
}

} // namespace detail

/// Whether a host has several ranks, so that sums travel between hosts, and not elements.
SKEIN_INLINE bool hierarchical_communicator::sums_travel() const noexcept {
    return where_.hosts.size() < static_cast<std::size_t>(size_);
}

/// Where sums of `io` are when they leave a host: in io itself, or in float32 for bf16 and f16. The
/// maximum of two halves is a half and needs no more memory. Only the leader has the place.
SKEIN_INLINE buffer_view hierarchical_communicator::place_of_sums(buffer_view io, dtype into,
                                                                  reduce_op op) {
    const bool adds = op == reduce_op::sum || op == reduce_op::mean;
    const bool wide = is_half(io.type) && (into != io.type || (adds && sums_travel()));
    if (!wide) return io;
    return where_.my_place == 0 ? floats(io.count) : buffer_view{nullptr, io.count, dtype::f32};
}

SKEIN_INLINE buffer_view hierarchical_communicator::floats(std::size_t count) {
    wide_.resize(std::max(wide_.size(), count));
    return buffer_view{wide_.data(), count, dtype::f32};
}

/// The sum of this host's ranks, to `to` of the leader.
SKEIN_INLINE task<void> hierarchical_communicator::sum_inside(buffer_view io, buffer_view to,
                                                              reduce_op op) {
    if (inside_) {
        auto local = inside_->reduce_to(io, to, op == reduce_op::mean ? reduce_op::sum : op, 0);
        co_await std::move(local);
    } else if (to.type != io.type) {
        widen(static_cast<float*>(to.data), io.data, io.type, io.count);
    }
}

/// The whole reduction to every rank's `out`, which may be io, or f32.
SKEIN_INLINE task<void> hierarchical_communicator::reduce_everywhere(buffer_view io,
                                                                     buffer_view out,
                                                                     reduce_op op) {
    if (where_.hosts.size() == 1) { // inside_ knows the divisor of mean; out is io
        auto all = inside_->all_reduce(io, op);
        co_await std::move(all);
        co_return;
    }
    const buffer_view sums = place_of_sums(io, out.type, op);
    auto local = sum_inside(io, sums, op);
    co_await std::move(local);
    if (between_) {
        auto global = between_->all_reduce_into(sums, out, op);
        co_await std::move(global);
    }
    if (inside_) {
        wait_for_leader();
        auto back = inside_->broadcast(out, 0);
        co_await std::move(back);
    }
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_then_cut(buffer_view in, buffer_view out,
                                                                   reduce_op op) {
    work_.resize(std::max(work_.size(), in.bytes()));
    const buffer_view whole{work_.data(), in.count, in.type};
    detail::put_elements(in, whole);
    std::vector<std::size_t> equal(static_cast<std::size_t>(size_), out.count);
    auto reducing = reduce_parts(whole, std::move(equal), out, op);
    co_await std::move(reducing);
}

/// Each rank's part of the sum to its `out`, which may be that part of io, or f32.
SKEIN_INLINE task<void> hierarchical_communicator::reduce_parts(buffer_view io,
                                                                std::vector<std::size_t> counts,
                                                                buffer_view out, reduce_op op) {
    const auto mine = static_cast<std::size_t>(rank_);
    const std::size_t before = detail::starts_of(counts)[mine];
    const bool same_type = io.type == out.type;
    const bool one_host = where_.hosts.size() == 1;
    if (one_host || (!sums_travel() && hosts_are_neighbours())) { // one level does it all
        communicator* const level = one_host ? static_cast<communicator*>(inside_.get())
                                             : static_cast<communicator*>(between_.get());
        auto all = same_type ? level->reduce_scatter_v(io, counts, op)
                             : level->reduce_scatter_v(io, counts, out, op);
        co_await std::move(all);
        if (same_type) detail::put_elements(io.slice(before, out.count), out);
    } else if (!hosts_are_neighbours()) {
        const buffer_view whole = same_type ? io : floats(io.count);
        auto all = reduce_everywhere(io, whole, op);
        co_await std::move(all);
        detail::put_elements(whole.slice(before, out.count), out);
    } else {
        auto parts = reduce_host_parts(io, std::move(counts), out, op);
        co_await std::move(parts);
    }
}

/// Every host's part of the sum goes to its leader, and from there to its ranks.
SKEIN_INLINE task<void> hierarchical_communicator::reduce_host_parts(
    buffer_view io, std::vector<std::size_t> counts, buffer_view out, reduce_op op) {
    const bool leads = where_.my_place == 0;
    const std::vector<std::size_t> per_host = sums_per_host(counts);
    const auto here = static_cast<std::size_t>(where_.my_host);
    const std::size_t first = detail::starts_of(per_host)[here];
    const buffer_view sums = place_of_sums(io, out.type, op);
    auto local = sum_inside(io, sums, op);
    co_await std::move(local);
    if (between_) {
        auto global = between_->reduce_scatter_v(sums, per_host, op);
        co_await std::move(global);
    }
    buffer_view ours = io.slice(first, per_host[here]);
    if (io.type != out.type)
        ours = leads ? sums.slice(first, per_host[here]) : floats(per_host[here]);
    else if (sums.type != io.type && leads) // rounded before it is handed out
        narrow(ours.data, ours.type, static_cast<const float*>(sums.data) + first, ours.count);
    if (inside_) {
        wait_for_leader();
        auto back = inside_->broadcast(ours, 0);
        co_await std::move(back);
    }
    const auto before = detail::starts_of(counts)[static_cast<std::size_t>(rank_)];
    detail::put_elements(ours.slice(before - first, out.count), out);
}

} // namespace skein::dist


// ======== skein/dist/detail/hierarchical.ipp, continued
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/core.h>

namespace skein::dist {

SKEIN_INLINE hierarchical_communicator::hierarchical_communicator(
    loop& on, placement where, int rank, int world_size, std::unique_ptr<shm_communicator> inside,
    std::unique_ptr<ring_communicator> between, std::shared_ptr<links> net,
    collective_options limits, std::vector<int> labels)
    : on_(on), where_(std::move(where)), rank_(rank), size_(world_size), labels_(std::move(labels)),
      inside_(std::move(inside)), between_(std::move(between)), net_(std::move(net)),
      deadline_(limits.deadline) {
    for (int r = static_cast<int>(labels_.size()); r < size_; ++r) labels_.push_back(r);
    SKEIN_CHECK(inside_ || where_.mine().size() == 1, "ranks of one host without shared memory");
    SKEIN_CHECK(between_ || where_.my_place != 0 || where_.hosts.size() == 1,
                "a leader without a ring");
    if (between_) {
        between_->on_failure([shm = inside_.get(), s = stopped_, net = net_](const error& why) {
            if (shm != nullptr) shm->abort(why);
            stop_messages(*s, net.get(), why);
        });
    }
}

SKEIN_INLINE hierarchical_communicator::~hierarchical_communicator() = default;

SKEIN_INLINE std::string hierarchical_communicator::name() const {
    return fmt::format("hierarchical x{} on {} hosts", size_, where_.hosts.size());
}

SKEIN_INLINE void hierarchical_communicator::set_tag(collective_tag tag) {
    tag_ = tag.pack();
    if (inside_) inside_->set_tag(tag);
    if (between_) between_->set_tag(tag);
}

SKEIN_INLINE task<void> hierarchical_communicator::all_reduce(buffer_view io, reduce_op op) {
    begin(detail::all_reduce_call(io, op));
    return abort_both_on_error(reduce_everywhere(io, io, op));
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                                  reduce_op op) {
    begin(detail::reduce_scatter_call(in, out, op, size_));
    return abort_both_on_error(reduce_then_cut(in, out, op));
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_scatter_v(
    buffer_view io, std::span<const std::size_t> counts, reduce_op op) {
    begin(detail::reduce_scatter_v_call(io, counts, op, size_));
    std::vector<std::size_t> owned(counts.begin(), counts.end());
    const auto mine = static_cast<std::size_t>(rank_);
    const auto out = io.slice(detail::starts_of(counts)[mine], counts[mine]);
    return abort_both_on_error(reduce_parts(io, std::move(owned), out, op));
}

SKEIN_INLINE task<void> hierarchical_communicator::reduce_scatter_v(
    buffer_view io, std::span<const std::size_t> counts, buffer_view out, reduce_op op) {
    begin(detail::reduce_scatter_v_call(io, counts, out, op, rank_, size_));
    std::vector<std::size_t> owned(counts.begin(), counts.end());
    return abort_both_on_error(reduce_parts(io, std::move(owned), out, op));
}

SKEIN_INLINE task<void> hierarchical_communicator::all_gather(buffer_view in, buffer_view out) {
    begin(detail::all_gather_call(in, out, size_));
    std::vector<std::size_t> counts(static_cast<std::size_t>(size_), in.count);
    return abort_both_on_error(gather(in, out, std::move(counts)));
}

SKEIN_INLINE task<void> hierarchical_communicator::all_gather_v(
    buffer_view in, buffer_view out, std::span<const std::size_t> counts) {
    begin(detail::all_gather_v_call(in, out, counts, rank_, size_));
    std::vector<std::size_t> owned(counts.begin(), counts.end());
    return abort_both_on_error(gather(in, out, std::move(owned)));
}

SKEIN_INLINE task<void> hierarchical_communicator::broadcast(buffer_view io, int root) {
    begin(detail::broadcast_call(io, root, size_));
    return abort_both_on_error(hand_out(io, root));
}

SKEIN_INLINE task<void> hierarchical_communicator::barrier() {
    begin(detail::barrier_call());
    return abort_both_on_error(meet_everywhere());
}

SKEIN_INLINE task<std::shared_ptr<group_memory>> hierarchical_communicator::allocate(
    std::size_t bytes, memory_kind kind) {
    begin(detail::allocate_call(bytes, kind));
    std::shared_ptr<group_memory> made;
    auto making = abort_both_on_error(make_memory(bytes, kind, &made));
    co_await std::move(making);
    co_return made;
}

SKEIN_INLINE task<void> hierarchical_communicator::send(buffer_view io, int to) {
    begin(detail::message_call(io, to, rank_, size_));
    if (const int p = place_here(to); p >= 0) return abort_both_on_error(inside_->send(io, p));
    return abort_both_on_error(message(io, to, true));
}

SKEIN_INLINE task<void> hierarchical_communicator::recv(buffer_view io, int from) {
    begin(detail::message_call(io, from, rank_, size_));
    if (const int p = place_here(from); p >= 0) return abort_both_on_error(inside_->recv(io, p));
    return abort_both_on_error(message(io, from, false));
}

SKEIN_INLINE task<void> hierarchical_communicator::close() {
    if (inside_) {
        auto leaving = inside_->close();
        co_await std::move(leaving);
    }
    if (between_) {
        auto closing = between_->close();
        co_await std::move(closing);
    }
    if (net_) {
        auto stopping = net_->stop();
        co_await std::move(stopping);
    }
}

SKEIN_INLINE void hierarchical_communicator::abort(error why) noexcept {
    try {
        on_.post_from_any_thread(
            [s = stopped_, net = net_, why] { stop_messages(*s, net.get(), why); });
    } catch (...) { // out of memory: the deadline will end messages
    }
    if (inside_) inside_->abort(why);
    if (between_) between_->abort(std::move(why));
}

SKEIN_INLINE void hierarchical_communicator::stop_messages(stop_state& s, links* net,
                                                           const error& why) {
    if (s.why) return;
    s.why = why;
    if (net != nullptr) net->abandon(why);
    s.stop.request();
}

SKEIN_INLINE int hierarchical_communicator::place_here(int world_rank) const {
    const auto& here = where_.mine();
    const auto found = std::find(here.begin(), here.end(), world_rank);
    return found == here.end() ? -1 : static_cast<int>(found - here.begin());
}

SKEIN_INLINE void hierarchical_communicator::begin(detail::signature what) {
    const auto kind = what.kind;
    what.sequence = doing_.sequence + (kind == detail::op_kind::message ? 0 : 1);
    what.tag = tag_;
    doing_ = what;
    if (failed_) throw *failed_;
    if (stopped_->why) throw detail::error_at(*stopped_->why, rank_and_call());
    // The parts of a collective are told apart from the same parts of another one.
    const auto outer = kind == detail::op_kind::message ? detail::op_kind::none : kind;
    if (inside_) inside_->set_outer(outer);
    if (between_) between_->set_outer(outer);
    wait_inside();
    const bool alone = where_.mine().size() == 1;
    if (between_) between_->set_deadline(alone ? deadline_ : deadline_ + patience());
}

SKEIN_INLINE std::string hierarchical_communicator::rank_and_call() const {
    return fmt::format("rank {}, {}", label(rank_), detail::describe(doing_));
}

SKEIN_INLINE time_span hierarchical_communicator::patience() const {
    return deadline_ / 2 + time_constants::lan().ring_grace_least;
}

SKEIN_INLINE void hierarchical_communicator::wait_inside() {
    if (inside_) inside_->set_deadline(deadline_);
}

SKEIN_INLINE void hierarchical_communicator::wait_for_leader() {
    if (inside_) inside_->set_deadline(deadline_ + 3 * patience());
}

SKEIN_INLINE task<void> hierarchical_communicator::abort_both_on_error(task<void> work) {
    auto outcome = as_result(std::move(work));
    auto ended = co_await std::move(outcome);
    if (ended) co_return;
    const auto& why = ended.error();
    abort(why);
    failed_ = detail::error_at(why, rank_and_call());
    throw *failed_;
}

/// Whether the parts of each host lie one after the other in rank order.
SKEIN_INLINE bool hierarchical_communicator::hosts_are_neighbours() const {
    int next = 0;
    for (const auto& host : where_.hosts) {
        for (const int r : host) {
            if (r != next++) return false;
        }
    }
    return true;
}

/// Gathered host by host, and put into rank order where that is another one.
SKEIN_INLINE task<void> hierarchical_communicator::gather(buffer_view in, buffer_view out,
                                                          std::vector<std::size_t> counts) {
    const std::vector<std::size_t> per_host = sums_per_host(counts);
    const auto mine = static_cast<std::size_t>(where_.my_host);
    const std::size_t before = detail::starts_of(per_host)[mine];
    std::vector<std::size_t> here;
    for (const int r : where_.mine()) here.push_back(counts[static_cast<std::size_t>(r)]);

    const bool in_order = hosts_are_neighbours();
    if (!in_order) work_.resize(std::max(work_.size(), out.bytes()));
    const buffer_view all = in_order ? out : buffer_view{work_.data(), out.count, in.type};
    const buffer_view ours = all.slice(before, per_host[mine]);
    if (inside_) {
        auto local = inside_->all_gather_v(in, ours, here);
        co_await std::move(local);
    } else if (in.count > 0 && ours.data != in.data) {
        std::memcpy(ours.data, in.data, in.bytes());
    }
    if (between_) {
        auto global = between_->all_gather_v(ours, all, per_host);
        co_await std::move(global);
    }
    if (inside_ && where_.hosts.size() > 1) {
        wait_for_leader();
        auto back = inside_->broadcast(all, 0);
        co_await std::move(back);
    }
    if (!in_order) put_in_rank_order(counts, size_of(in.type), out.begin());
}

SKEIN_INLINE std::vector<std::size_t> hierarchical_communicator::sums_per_host(
    const std::vector<std::size_t>& counts) const {
    std::vector<std::size_t> sums;
    for (const auto& host : where_.hosts) {
        sums.push_back(0);
        for (const int r : host) sums.back() += counts[static_cast<std::size_t>(r)];
    }
    return sums;
}

/// work_ has the parts of all ranks, host by host.
SKEIN_INLINE void hierarchical_communicator::put_in_rank_order(
    const std::vector<std::size_t>& counts, std::size_t width, std::byte* out) const {
    const std::vector<std::size_t> starts = detail::starts_of(counts);
    std::size_t from = 0;
    for (const auto& host : where_.hosts) {
        for (const int r : host) {
            const auto k = static_cast<std::size_t>(r);
            if (counts[k] > 0) {
                std::memcpy(out + starts[k] * width, work_.data() + from * width,
                            counts[k] * width);
            }
            from += counts[k];
        }
    }
}

SKEIN_INLINE task<void> hierarchical_communicator::hand_out(buffer_view io, int root) {
    int root_host = 0;
    for (std::size_t h = 0; h < where_.hosts.size(); ++h) {
        const auto& members = where_.hosts[h];
        if (std::find(members.begin(), members.end(), root) != members.end())
            root_host = static_cast<int>(h);
    }
    const bool here = root_host == where_.my_host;
    if (here && inside_) {
        auto local = inside_->broadcast(io, place_here(root));
        co_await std::move(local);
    }
    if (between_) {
        auto global = between_->broadcast(io, root_host);
        co_await std::move(global);
    }
    if (!here && inside_) {
        wait_for_leader();
        auto back = inside_->broadcast(io, 0);
        co_await std::move(back);
    }
}

SKEIN_INLINE task<void> hierarchical_communicator::meet_everywhere() {
    if (inside_) {
        auto come = inside_->barrier();
        co_await std::move(come);
    }
    if (between_) {
        auto all = between_->barrier();
        co_await std::move(all);
    }
    if (inside_) {
        wait_for_leader();
        auto go = inside_->barrier();
        co_await std::move(go);
    }
}

/// Shared inside each host; nobody has it before everybody has.
SKEIN_INLINE task<void> hierarchical_communicator::make_memory(
    std::size_t bytes, memory_kind kind, std::shared_ptr<group_memory>* made) {
    const bool everywhere = where_.hosts.size() == 1;
    if (inside_) {
        auto sharing = inside_->share(bytes, kind, everywhere);
        *made = co_await std::move(sharing);
    } else {
        try {
            *made = group_memory::alone(bytes, kind, everywhere);
        } catch (const error& e) {
            throw detail::no_memory(label(rank_), doing_, e);
        }
    }
    if (between_) {
        auto agreeing = between_->agree(detail::allocate_call(bytes, kind));
        co_await std::move(agreeing);
    }
    if (inside_ && !everywhere) {
        wait_for_leader();
        auto go = inside_->barrier();
        co_await std::move(go);
    }
}

SKEIN_INLINE task<void> hierarchical_communicator::message(buffer_view io, int peer, bool sends) {
    const detail::signature what = doing_;
    const time_point until = deadline_after(loop::current().now(), deadline_);
    auto work = sends ? detail::send_message(*net_, io, label(peer), what, until)
                      : detail::recv_message(*net_, io, label(peer), what, until);
    auto stoppable = with_cancel(stopped_->stop.token(), std::move(work));
    auto limited = as_result(with_deadline(std::move(stoppable), until));
    auto ended = co_await std::move(limited);
    if (ended) co_return;
    if (ended.error().code() == errc::cancelled && stopped_->why) throw *stopped_->why;
    if (ended.error().code() != errc::timeout) throw ended.error();
    throw error(errc::timeout,
                fmt::format("rank {} failed in {}: it has not done its part within {:.3g} s",
                            label(peer), detail::describe(what), to_seconds(deadline_)));
}

} // namespace skein::dist

// ======== skein/dist/stub.hpp
// The communicator of one rank: every law holds, nothing is sent.
//
// For programs that run with any number of workers, one included, and as the smallest model.


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


// ======== skein/dist/detail/stub.ipp
// The collectives of one rank.


#include <cstring>
#include <utility>

namespace skein::dist {

SKEIN_INLINE task<void> stub_communicator::all_reduce(buffer_view io, reduce_op op) {
    (void)detail::all_reduce_call(io, op);
    check();
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                          reduce_op op) {
    (void)detail::reduce_scatter_call(in, out, op, 1);
    return copy(in, out);
}
SKEIN_INLINE task<void> stub_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            reduce_op op) {
    (void)detail::reduce_scatter_v_call(io, counts, op, 1);
    check();
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            buffer_view out, reduce_op op) {
    (void)detail::reduce_scatter_v_call(io, counts, out, op, 0, 1);
    check();
    if (io.data != out.data) widen(static_cast<float*>(out.data), io.data, io.type, io.count);
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::all_gather(buffer_view in, buffer_view out) {
    (void)detail::all_gather_call(in, out, 1);
    return copy(in, out);
}
SKEIN_INLINE task<void> stub_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                        std::span<const std::size_t> counts) {
    (void)detail::all_gather_v_call(in, out, counts, 0, 1);
    return copy(in, out);
}
SKEIN_INLINE task<void> stub_communicator::broadcast(buffer_view io, int root) {
    (void)detail::broadcast_call(io, root, 1);
    check();
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::barrier() {
    check();
    co_return;
}
SKEIN_INLINE task<std::shared_ptr<group_memory>> stub_communicator::allocate(std::size_t bytes,
                                                                             memory_kind kind) {
    (void)detail::allocate_call(bytes, kind);
    check();
    co_return group_memory::alone(bytes, kind, true);
}
SKEIN_INLINE task<void> stub_communicator::send(buffer_view io, int to) {
    (void)detail::message_call(io, to, 0, 1); // nobody to talk to: a bug of the caller
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::recv(buffer_view io, int from) {
    (void)detail::message_call(io, from, 0, 1);
    co_return;
}
SKEIN_INLINE task<void> stub_communicator::close() { co_return; }

SKEIN_INLINE void stub_communicator::abort(error why) noexcept {
    const std::lock_guard lock(guard_);
    if (!aborted_) aborted_ = std::move(why);
}

SKEIN_INLINE task<void> stub_communicator::copy(buffer_view in, buffer_view out) {
    check();
    if (in.data != out.data && in.count > 0) std::memmove(out.data, in.data, in.bytes());
    co_return;
}
SKEIN_INLINE void stub_communicator::check() {
    const std::lock_guard lock(guard_);
    if (aborted_) throw *aborted_;
}

} // namespace skein::dist


// ======== skein/dist/detail/own_models.ipp, continued
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist::detail {

SKEIN_INLINE task<void> listen_task(net::real_loop* loop, std::string bind,
                                    std::unique_ptr<net::listener>* out,
                                    std::shared_ptr<net::network>* network) {
    *network = std::make_shared<net::real_network>(*loop);
    *out = (*network)->listen(net::address::tcp(std::move(bind), 0));
    co_return;
}

SKEIN_INLINE error lost_error(int rank, const error& why) {
    return error(errc::peer_lost, fmt::format("rank {} is lost", rank)).with_cause(why.what());
}

SKEIN_INLINE task<void> start_links(std::shared_ptr<links> l) {
    l->start();
    co_return;
}
SKEIN_INLINE task<void> stop_links(std::shared_ptr<links> l,
                                   std::unique_ptr<ring_communicator> ring) {
    if (ring) {
        auto closing = ring->close();
        co_await std::move(closing);
    }
    auto stopping = l->stop();
    co_await std::move(stopping);
}

/// The listener of one rank and the addresses of all. On the loop of the site's worker.
SKEIN_INLINE std::shared_ptr<links> make_links(const comm_site& site) {
    const bool loopback = site.one_network && site.options.advertise.empty();
    const std::string name = !site.options.advertise.empty() ? site.options.advertise
                             : loopback                      ? "127.0.0.1"
                                                             : site.world.host();
    std::unique_ptr<net::listener> listener;
    std::shared_ptr<net::network> network;
    site.worker.run([&] {
        return listen_task(&site.worker.loop(), loopback ? "127.0.0.1" : "*", &listener, &network);
    });
    const auto mine = net::to_string(net::address::tcp(name, listener->local().port));
    const auto texts =
        site.world.exchange(site.key + "/addresses", as_bytes(std::string_view(mine)));
    // Links know the ranks by their labels, so that all errors do; nobody connects to the others.
    const auto count = static_cast<std::size_t>(site.label(site.ranks() - 1)) + 1;
    std::vector<net::address> addresses(count);
    for (int r = 0; r < site.ranks(); ++r) {
        const auto text = as_text(texts[static_cast<std::size_t>(r)]);
        addresses[static_cast<std::size_t>(site.label(r))] = net::address::parse(text).value();
    }
    auto made = std::make_shared<links>(std::move(network), std::move(listener),
                                        site.label(site.world.rank()), std::move(addresses),
                                        site.world.secret(), site.key);
    site.worker.run([made] { return start_links(made); });
    return made;
}

/// The ring of the given ranks, when all ranks of the world have come so far. Null on a rank
/// that is not one of them, or the only one.
SKEIN_INLINE std::unique_ptr<ring_communicator> connect_ring(const comm_site& site,
                                                             std::shared_ptr<links> net,
                                                             std::vector<int> group) {
    std::unique_ptr<ring_communicator> ring;
    try {
        // A rank that dies now must not be waited for.
        const auto watching =
            site.world.on_lost([net, on = &site.worker.loop()](int lost, const error& why) {
                on->post_from_any_thread([net, e = lost_error(lost, why)] { net->abandon(e); });
            });
        const auto own = std::find(group.begin(), group.end(), site.world.rank());
        if (own != group.end() && group.size() > 1) {
            const int position = static_cast<int>(own - group.begin());
            collective_options connecting = site.options.limits;
            connecting.deadline = site.options.connect_deadline;
            ring = site.worker.run([&] {
                return ring_communicator::connect(net, site.labels_of(group), position,
                                                  site.options.ring, connecting, site.ranks());
            });
            ring->set_deadline(site.options.limits.deadline);
        }
        site.world.exchange(site.key + "/connected", byte_span{});
        return ring;
    } catch (...) {
        site.worker.run([&] { return stop_links(net, std::move(ring)); });
        throw;
    }
}

SKEIN_INLINE comm_model stub_model() {
    return {"stub",
            [](const comm_site& site) {
                if (site.ranks() == 1) return comm_fit{100, ""};
                return comm_fit{0, "it is for worlds of one rank"};
            },
            [](const comm_site&) -> std::unique_ptr<communicator> {
                return std::make_unique<stub_communicator>();
            }};
}

SKEIN_INLINE comm_model shm_model() {
    return {"shm",
            [](const comm_site& site) {
                if (site.ranks() == 1) return comm_fit{0, "it needs two ranks"};
                if (site.where.hosts.size() == 1) return comm_fit{30, ""};
                return comm_fit{0, "ranks of different hosts cannot share memory"};
            },
            [](const comm_site& site) -> std::unique_ptr<communicator> {
                return share_segment(site.world, site.key, site.where.mine(),
                                     site.labels_of(site.where.mine()), site.options.shm,
                                     site.options.limits);
            }};
}

SKEIN_INLINE comm_model ring_model() {
    return {"ring",
            [](const comm_site& site) {
                if (site.ranks() == 1) return comm_fit{0, "it needs two ranks"};
                const bool one_each =
                    site.where.hosts.size() == static_cast<std::size_t>(site.ranks());
                return comm_fit{one_each ? 20 : 5, ""};
            },
            [](const comm_site& site) -> std::unique_ptr<communicator> {
                std::vector<int> all(static_cast<std::size_t>(site.ranks()));
                std::iota(all.begin(), all.end(), 0);
                return connect_ring(site, make_links(site), std::move(all));
            }};
}

SKEIN_INLINE task<std::unique_ptr<communicator>> make_hierarchical(
    const comm_site& site, std::unique_ptr<shm_communicator> inside,
    std::unique_ptr<ring_communicator> between, std::shared_ptr<links> net) {
    co_return std::make_unique<hierarchical_communicator>(
        site.worker.loop(), site.where, site.world.rank(), site.ranks(), std::move(inside),
        std::move(between), std::move(net), site.options.limits, site.options.labels);
}

SKEIN_INLINE comm_model hierarchical_model() {
    return {"hierarchical",
            [](const comm_site& site) {
                if (site.ranks() == 1) return comm_fit{0, "it needs two ranks"};
                return comm_fit{10, ""};
            },
            [](const comm_site& site) -> std::unique_ptr<communicator> {
                auto inside = share_segment(site.world, site.key, site.where.mine(),
                                            site.labels_of(site.where.mine()), site.options.shm,
                                            site.options.limits);
                const auto net = make_links(site);
                auto between = connect_ring(site, net, site.where.leaders());
                // On the loop: the ring runs there, and may fail while this one is made.
                return site.worker.run([&] {
                    return make_hierarchical(site, std::move(inside), std::move(between), net);
                });
            }};
}

SKEIN_INLINE std::vector<comm_model> own_models() {
    return {stub_model(), shm_model(), ring_model(), hierarchical_model()};
}

} // namespace skein::dist::detail


// ======== skein/dist/detail/models.ipp, continued
#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace skein::dist {

namespace detail {

struct model_list {
    std::mutex guard;
    std::vector<comm_model> models = own_models();

    static model_list& instance() {
        static model_list list;
        return list;
    }
    [[nodiscard]] std::vector<comm_model> copy() {
        const std::lock_guard lock(guard);
        return models;
    }
};

} // namespace detail

SKEIN_INLINE int comm_site::ranks() const { return world.world_size(); }

SKEIN_INLINE int comm_site::label(int rank) const {
    return options.labels.empty() ? rank : options.labels[static_cast<std::size_t>(rank)];
}
SKEIN_INLINE std::vector<int> comm_site::labels_of(const std::vector<int>& ranks) const {
    std::vector<int> labels;
    for (const int r : ranks) labels.push_back(label(r));
    return labels;
}

SKEIN_INLINE void add_comm_model(comm_model model) {
    auto& list = detail::model_list::instance();
    const std::lock_guard lock(list.guard);
    for (const auto& known : list.models) {
        if (known.name == model.name || model.name == "automatic") {
            throw error(errc::already_exists,
                        fmt::format("there is a communicator called '{}' already", model.name));
        }
    }
    list.models.push_back(std::move(model));
}

SKEIN_INLINE std::vector<std::string> comm_model_names() {
    std::vector<std::string> names{"automatic"};
    for (const auto& m : detail::model_list::instance().copy()) names.push_back(m.name);
    return names;
}

SKEIN_INLINE result<std::string> checked_comm_model(std::string_view name) {
    auto names = comm_model_names();
    if (std::find(names.begin(), names.end(), name) != names.end()) return std::string(name);
    std::erase(names, "stub"); // what a single rank has anyway is nothing to choose
    return error(errc::invalid_argument, fmt::format("no communicator is called '{}'", name))
        .with_hint(fmt::format("choose one of: {}", fmt::join(names, ", ")));
}

SKEIN_INLINE comm_model choose_comm_model(const comm_site& site) {
    const std::string& name = site.options.model;
    (void)checked_comm_model(name).value();
    std::optional<comm_model> best;
    int most = 0;
    std::string why_not;
    for (auto& model : detail::model_list::instance().copy()) {
        if (name != "automatic" && name != model.name) continue;
        const comm_fit fit = model.fits(site);
        if (!fit.why_not.empty()) {
            why_not = fit.why_not;
        } else if (!best || fit.score > most) {
            most = fit.score;
            best = std::move(model);
        }
    }
    if (best) return std::move(*best);
    if (site.ranks() == 1) return detail::stub_model();
    throw error(errc::not_supported, fmt::format("{} ranks on {} hosts cannot use {}", site.ranks(),
                                                 site.where.hosts.size(), name))
        .with_cause(why_not)
        .with_hint("choose automatic");
}

} // namespace skein::dist


// ======== skein/dist/bootstrap.hpp, continued
#include <memory>

namespace skein::spmd {
class rendezvous;
}

namespace skein::dist {

/// Makes this rank's communicator on worker's loop; every rank calls it. Blocking, on the compute
/// thread.
///   errors  peer_lost, timeout, refused, permission_denied; not_supported: the model does not fit
///           these ranks; invalid_argument: no such model
[[nodiscard]] std::unique_ptr<communicator> make_communicator(spmd::rendezvous& world,
                                                              const comm_options& options,
                                                              net::loop_thread& worker);

/// The same with a thread of its own; a lost member (rendezvous::on_lost) aborts it.
[[nodiscard]] std::unique_ptr<comm_thread> make_comm_thread(spmd::rendezvous& world,
                                                            const comm_options& options = {});

} // namespace skein::dist


// ======== skein/dist/detail/bootstrap.ipp
// The exchange of places, then what the chosen model does.


// ======== skein/dist/detail/place_card.hpp
// What ranks tell each other of where they are.


#include <string>

namespace skein::spmd {
class rendezvous;
}

namespace skein::dist::detail {

/// What one rank tells the others of its place, separated by newlines.
struct place_card {
    std::string host;    ///< the same for ranks that can share memory
    std::string network; ///< the same for ranks that have the same loopback

    static place_card of(const spmd::rendezvous& world);
    static place_card decode(byte_span bytes);
    [[nodiscard]] std::string encode() const;
};

} // namespace skein::dist::detail


// ======== skein/dist/detail/place_card.ipp
// Where this process is: host, boot and the namespaces of its container.


#include <algorithm>
#include <string>

#include <unistd.h>

namespace skein::dist::detail {

/// A namespace of this process, e.g. "net:[4026531840]".
SKEIN_INLINE std::string namespace_of(const char* path) {
    char text[64] = {};
    return ::readlink(path, text, sizeof text - 1) > 0 ? text : "";
}

SKEIN_INLINE place_card place_card::of(const spmd::rendezvous& world) {
    const std::string boot = boot_id();
    return {world.host() + "|" + boot + "|" + namespace_of("/proc/self/ns/pid"),
            boot + "|" + namespace_of("/proc/self/ns/net")};
}

SKEIN_INLINE std::string place_card::encode() const { return host + "\n" + network; }

SKEIN_INLINE place_card place_card::decode(byte_span bytes) {
    const auto text = as_text(bytes);
    const auto cut = std::min(text.find('\n'), text.size());
    return {std::string(text.substr(0, cut)),
            std::string(text.substr(std::min(cut + 1, text.size())))};
}

} // namespace skein::dist::detail


// ======== skein/dist/detail/bootstrap.ipp, continued
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist {

namespace detail {

SKEIN_INLINE comm_site look_around(spmd::rendezvous& world, const comm_options& options,
                                   net::loop_thread& worker) {
    comm_site site{.world = world, .options = options, .worker = worker, .where = {}, .key = {}};
    site.key = fmt::format("skein-comm-{}-{}", world.generation(), options.name);
    const auto mine = place_card::of(world);
    std::vector<std::string> hosts;
    if (world.world_size() == 1) {
        hosts.push_back(mine.host);
    } else {
        const auto cards = world.exchange(site.key + "/places", as_bytes(mine.encode()));
        for (const auto& blob : cards) {
            const auto card = place_card::decode(blob);
            hosts.push_back(card.host);
            site.one_network = site.one_network && card.network == mine.network;
        }
    }
    site.where = placement::from(hosts, world.rank());
    return site;
}

} // namespace detail

SKEIN_INLINE std::unique_ptr<communicator> make_communicator(spmd::rendezvous& world,
                                                             const comm_options& options,
                                                             net::loop_thread& worker) {
    const comm_site site = detail::look_around(world, options, worker);
    return choose_comm_model(site).make(site);
}

SKEIN_INLINE std::unique_ptr<comm_thread> make_comm_thread(spmd::rendezvous& world,
                                                           const comm_options& options) {
    auto worker = std::make_unique<net::loop_thread>("skein-comm");
    auto model = make_communicator(world, options, *worker);
    auto watching = std::make_shared<spmd::subscription>();
    auto made = std::make_unique<comm_thread>(std::move(worker), std::move(model),
                                              [watching] { watching->reset(); });
    *watching = world.on_lost([comm = made.get()](int rank, const error& why) {
        comm->abort(detail::lost_error(rank, why));
    });
    return made;
}

} // namespace skein::dist

// ======== skein/dist/split.hpp
// Communicators of parts of a world: the ranks of one host, the first ranks of all hosts, a row and
// a column of a grid.
//
//     auto local = split(world, world.rank() / 2, {.name = "local"});    // 0 1 | 2 3
//     auto cross = split(world, world.rank() % 2, {.name = "cross"});    // 0 2 | 1 3
//
// The whole world takes part in every split, in the same order; errors name ranks of the world.


#include <memory>

namespace skein::spmd {
class rendezvous;
}

namespace skein::dist {

/// The ranks that give the same color get one communicator among them, in the order of their ranks
/// in the world. Blocking, on the compute thread. A lost rank of the world, in the group or not,
/// aborts it.
///   color    negative: takes part, gets null
///   options  the same on all ranks; a model is chosen for each group; the name is used once in a
///            generation of the world
///   errors   those of make_communicator, on all ranks of the world if on one
[[nodiscard]] std::unique_ptr<comm_thread> split(spmd::rendezvous& world, int color,
                                                 comm_options options);

} // namespace skein::dist


// ======== skein/dist/detail/split.ipp
// The world as the ranks of one color see it.
//
// Groups need different numbers of exchanges, the world's are for all its ranks: so an exchange of
// a group is the next round of the world, and who is done goes on taking part until all are. A rank
// that has failed says so in its next round, which is the last one of everybody.


#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist {

namespace detail {

enum class split_state : std::uint8_t { working = 0, done = 1, failed = 2 };

/// What a rank says in one round.
struct split_word {
    split_state state = split_state::working;
    std::int32_t color = -1;
    std::string key;  ///< of the group's exchange; in round 0 the rank's host
    std::string blob; ///< for the group; failed: the error
};

class split_world final : public spmd::rendezvous {
public:
    split_world(spmd::rendezvous& world, int color, std::string name)
        : world_(world), color_(color), name_(std::move(name)) {
        split_word mine;
        mine.key = world.host();
        for (const split_word& word : round(std::move(mine))) {
            const auto r = static_cast<int>(hosts_.size());
            hosts_.push_back(word.key);
            if (word.color != color || color < 0) continue;
            if (r == world.rank()) place_ = static_cast<int>(members_.size());
            members_.push_back(r);
        }
    }

    int rank() const override { return place_; }
    int world_size() const override { return static_cast<int>(members_.size()); }
    int local_rank() const override { return neighbours(place_); }
    int local_size() const override { return neighbours(world_size()); }
    int generation() const override { return world_.generation(); }
    std::string host() const override { return world_.host(); }
    net::token secret() const override { return world_.secret(); }
    spmd::subscription on_lost(spmd::loss_listeners::listener lost) override {
        return world_.on_lost(std::move(lost));
    }
    std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override {
        split_word word;
        word.key = key;
        word.blob = skein::to_string(mine);
        const auto words = round(std::move(word));
        std::vector<byte_buffer> blobs;
        for (const int m : members_) {
            const split_word& theirs = words[static_cast<std::size_t>(m)];
            if (theirs.state != split_state::working || theirs.key != key) {
                throw error(errc::mismatch, fmt::format("rank {} exchanges '{}', rank {} '{}'",
                                                        world_.rank(), key, m, theirs.key))
                    .with_hint("split with the same options on all ranks");
            }
            blobs.push_back(to_buffer(theirs.blob));
        }
        return blobs;
    }

    /// The world ranks of the group.
    [[nodiscard]] const std::vector<int>& members() const { return members_; }

    /// Takes part until all are done. Throws the first error of any rank, on all of them.
    void finish(const std::optional<error>& failure) {
        while (!over_) {
            split_word mine;
            mine.state = failure ? split_state::failed : split_state::done;
            if (failure) mine.blob = skein::to_string(abort_body(*failure));
            (void)round(std::move(mine));
        }
        if (failure) throw *failure; // what another rank, or the world, had said before
    }

private:
    std::vector<split_word> round(split_word mine) {
        mine.color = color_;
        over_ = true; // whatever is thrown here, all get it
        const auto blobs =
            world_.exchange(fmt::format("{}/round-{}", name_, rounds_++), wire::encode(mine));
        std::vector<split_word> words;
        for (const auto& blob : blobs) words.push_back(wire::decode<split_word>(blob).value());
        bool all_done = true;
        for (std::size_t r = 0; r < words.size(); ++r) {
            all_done = all_done && words[r].state == split_state::done;
            if (words[r].state != split_state::failed) continue;
            const error why = decode_abort(as_bytes(words[r].blob), fmt::format("rank {}", r));
            throw error(why.code(), fmt::format("rank {} failed in split: {}", r, why.text()))
                .with_cause(why.cause())
                .with_hint(why.hint());
        }
        over_ = all_done;
        return words;
    }

    /// Members before `end` on this rank's host.
    int neighbours(int end) const {
        int same = 0;
        for (int p = 0; p < end; ++p) {
            const auto r = static_cast<std::size_t>(members_[static_cast<std::size_t>(p)]);
            same += hosts_[r] == host() ? 1 : 0;
        }
        return same;
    }

    spmd::rendezvous& world_;
    int color_;
    std::string name_;
    int rounds_ = 0, place_ = 0;
    std::vector<int> members_;
    std::vector<std::string> hosts_; // of all ranks of the world
    bool over_ = false;              // no rank takes part in another round
};

} // namespace detail

SKEIN_INLINE std::unique_ptr<comm_thread> split(spmd::rendezvous& world, int color,
                                                comm_options options) {
    detail::split_world part(world, color,
                             fmt::format("skein-split-{}-{}", world.generation(), options.name));
    std::unique_ptr<comm_thread> made;
    std::optional<error> failure;
    try {
        if (color >= 0) {
            options.name += fmt::format("/{}", color);
            options.labels = part.members();
            made = make_comm_thread(part, options);
        }
    } catch (...) {
        failure = to_error(std::current_exception());
    }
    part.finish(failure);
    return made;
}

} // namespace skein::dist

// ======== skein/report.hpp
// Every public header of the layer report.
// Written by scripts/check_mirror.py --write.


// ======== skein/report/event_file.hpp
// Scalars for TensorBoard, written without TensorBoard or protobuf.
//
// An event file is a TFRecord file of Event messages; three fields of two messages are enough, so
// they are encoded by hand. Records are {u64 length, masked crc32c of it, data, masked crc32c}.
//   source: tensorflow/core/lib/io/record_writer.h, core/util/event.proto,
//   core/framework/summary.proto
//
//     auto events = event_file::open("runs/gpt", wall_time).value();
//     events->scalar("loss", 120, 2.31, wall_time);


#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::report {

/// One Event as far as it is used here: a version line, or scalars of one step.
struct tb_event {
    double wall_time = 0.0; ///< seconds since 1970
    std::int64_t step = 0;
    std::string file_version{}; ///< only the first event of a file
    std::vector<std::pair<std::string, float>> scalars{};

    friend bool operator==(const tb_event&, const tb_event&) = default;
};

/// The protobuf bytes of an event.
[[nodiscard]] byte_buffer encode_event(const tb_event& event);
/// The reverse; unknown fields are skipped. errc::malformed for anything else.
[[nodiscard]] result<tb_event> decode_event(byte_span bytes);

/// TensorFlow's masked checksum: rotated right by 15 bits plus 0xa282ead8.
[[nodiscard]] constexpr std::uint32_t masked_crc(std::uint32_t crc) noexcept {
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/// Appends one record to `out`.
void append_record(byte_buffer& out, byte_span data);

/// One record at the front of `bytes`: its data and how long it is in the file.
struct record_view {
    byte_span data;
    std::size_t file_bytes = 0;
};
/// errc::malformed when cut off, corrupt when a checksum does not fit.
[[nodiscard]] result<record_view> read_record(byte_span bytes);

/// The event file of one run folder. Not thread-safe.
class event_file {
public:
    /// Opens the folder's newest event file that skein wrote, or starts one.
    [[nodiscard]] static result<std::unique_ptr<event_file>> open(const std::string& folder,
                                                                  double wall_time);

    /// Appends one event, or nothing of it; handed to the system before it returns.
    [[nodiscard]] result<void> append(const tb_event& event);
    [[nodiscard]] result<void> scalar(std::string_view tag, std::uint64_t step, double value,
                                      double wall_time);

    /// Cuts the file before the first event whose step is above `step`, or that cannot be read.
    [[nodiscard]] result<void> truncate_after(std::uint64_t step);

    /// Cuts everything but the version line.
    [[nodiscard]] result<void> clear(double wall_time);

    [[nodiscard]] const std::string& path() const noexcept { return path_; }

private:
    event_file(std::unique_ptr<file> out, std::string path)
        : file_(std::move(out)), path_(std::move(path)) {}

    std::unique_ptr<file> file_;
    std::string path_;
};

} // namespace skein::report


// ======== skein/report/detail/event_file.ipp
// Bodies of <skein/report/event_file.hpp>. Field numbers and wire types:
//     Event    1 wall_time double(1) 2 step int64(0) 3 file_version bytes(2) 5 summary bytes(2)
//     Summary  1 value bytes(2)        Value  1 tag bytes(2)   2 simple_value float(5)


#include <bit>

#include <fmt/core.h>

#include <unistd.h>

namespace skein::report {

namespace detail {

SKEIN_INLINE void put_varint(byte_buffer& out, std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<std::byte>(value | 0x80));
    out.push_back(static_cast<std::byte>(value));
}
template <class T>
void put_fixed(byte_buffer& out, T value) {
    std::byte raw[sizeof(T)];
    store_le(raw, value);
    append(out, raw);
}
SKEIN_INLINE void put_bytes(byte_buffer& out, int field, byte_span bytes) {
    put_varint(out, static_cast<std::uint64_t>(field) << 3 | 2);
    put_varint(out, bytes.size());
    append(out, bytes);
}

/// Walks the fields of one message.
class proto_reader {
public:
    explicit proto_reader(byte_span message) : rest_(message) {}

    int field = 0, type = 0;
    std::uint64_t number = 0; // of types 0, 1 and 5
    byte_span bytes;          // of type 2

    /// The next field; false at the end or when broken.
    bool next() {
        if (rest_.empty()) return false;
        std::uint64_t key = 0;
        if (!varint(key)) return false;
        field = static_cast<int>(key >> 3 & 0x1fffffff);
        type = static_cast<int>(key & 7);
        if (type == 0) return varint(number);
        if (type == 1) return fixed<std::uint64_t>();
        if (type == 5) return fixed<std::uint32_t>();
        std::uint64_t length = 0;
        if (type != 2 || !varint(length) || length > rest_.size()) return fail();
        bytes = rest_.first(length);
        rest_ = rest_.subspan(length);
        return true;
    }
    [[nodiscard]] bool broken() const noexcept { return broken_; }

private:
    bool fail() noexcept {
        broken_ = true;
        return false;
    }
    bool varint(std::uint64_t& value) {
        value = 0;
        for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
            const auto b = std::to_integer<std::uint64_t>(rest_[0]);
            rest_ = rest_.subspan(1);
            value |= (b & 0x7f) << shift;
            if (b < 0x80) return true;
        }
        return fail();
    }
    template <class T>
    bool fixed() {
        if (rest_.size() < sizeof(T)) return fail();
        number = load_le<T>(rest_.data());
        rest_ = rest_.subspan(sizeof(T));
        return true;
    }

    byte_span rest_;
    bool broken_ = false;
};

} // namespace detail

SKEIN_INLINE byte_buffer encode_event(const tb_event& event) {
    byte_buffer out;
    detail::put_varint(out, 1 << 3 | 1);
    detail::put_fixed(out, std::bit_cast<std::uint64_t>(event.wall_time));
    detail::put_varint(out, 2 << 3);
    detail::put_varint(out, static_cast<std::uint64_t>(event.step));
    if (!event.file_version.empty())
        detail::put_bytes(out, 3, as_bytes(std::string_view(event.file_version)));
    if (event.scalars.empty()) return out;
    byte_buffer summary;
    for (auto& [tag, value] : event.scalars) {
        byte_buffer one;
        detail::put_bytes(one, 1, as_bytes(std::string_view(tag)));
        detail::put_varint(one, 2 << 3 | 5);
        detail::put_fixed(one, std::bit_cast<std::uint32_t>(value));
        detail::put_bytes(summary, 1, one);
    }
    detail::put_bytes(out, 5, summary);
    return out;
}

SKEIN_INLINE result<tb_event> decode_event(byte_span bytes) {
    const auto malformed = error(errc::malformed, "an event that is not a protobuf message");
    tb_event event;
    detail::proto_reader fields(bytes);
    while (fields.next()) {
        if (fields.field == 1 && fields.type == 1)
            event.wall_time = std::bit_cast<double>(fields.number);
        if (fields.field == 2 && fields.type == 0)
            event.step = static_cast<std::int64_t>(fields.number);
        if (fields.field == 3 && fields.type == 2)
            event.file_version = skein::to_string(fields.bytes);
        if (fields.field != 5 || fields.type != 2) continue;
        detail::proto_reader values(fields.bytes);
        while (values.next()) {
            if (values.field != 1 || values.type != 2) continue;
            std::pair<std::string, float> scalar;
            detail::proto_reader parts(values.bytes);
            while (parts.next()) {
                if (parts.field == 1 && parts.type == 2)
                    scalar.first = skein::to_string(parts.bytes);
                if (parts.field == 2 && parts.type == 5)
                    scalar.second = std::bit_cast<float>(static_cast<std::uint32_t>(parts.number));
            }
            if (parts.broken()) return malformed;
            event.scalars.push_back(std::move(scalar));
        }
        if (values.broken()) return malformed;
    }
    if (fields.broken()) return malformed;
    return event;
}

SKEIN_INLINE void append_record(byte_buffer& out, byte_span data) {
    const auto begin = out.size();
    detail::put_fixed(out, static_cast<std::uint64_t>(data.size()));
    detail::put_fixed(out, masked_crc(crc32c(byte_span(out).subspan(begin, 8))));
    append(out, data);
    detail::put_fixed(out, masked_crc(crc32c(data)));
}

SKEIN_INLINE result<record_view> read_record(byte_span bytes) {
    if (bytes.size() < 12) return error(errc::malformed, "a record is cut off");
    if (load_le<std::uint32_t>(bytes.data() + 8) != masked_crc(crc32c(bytes.first(8))))
        return error(errc::corrupt, "the checksum of a record's length does not fit");
    const auto length = load_le<std::uint64_t>(bytes.data());
    if (length > bytes.size() - 12 || bytes.size() - 12 - length < 4)
        return error(errc::malformed, "a record is cut off");
    const auto data = bytes.subspan(12, length);
    if (load_le<std::uint32_t>(data.data() + data.size()) != masked_crc(crc32c(data)))
        return error(errc::corrupt, "the checksum of a record does not fit");
    return record_view{data, static_cast<std::size_t>(length) + 16};
}

SKEIN_INLINE result<std::unique_ptr<event_file>> event_file::open(const std::string& folder,
                                                                  double wall_time) {
    posix_disk disk(link_policy::refuse);
    const auto entries = disk.list(folder);
    if (!entries) return entries.error();
    std::string name;
    for (auto& entry : *entries) // sorted by name, so by time
        if (entry.name.starts_with("events.out.tfevents.") && entry.name.ends_with(".skein"))
            name = entry.name;
    const bool fresh = name.empty();
    if (fresh) {
        char host[256] = "localhost";
        (void)::gethostname(host, sizeof host - 1);
        host[sizeof host - 1] = '\0';
        name =
            fmt::format("events.out.tfevents.{:010}.{}.{}.skein",
                        static_cast<std::uint64_t>(wall_time), host, static_cast<long>(::getpid()));
    }
    const auto path = join_path(folder, name);
    auto opened = disk.open(path, open_mode::append);
    if (!opened) return opened.error();
    auto events = std::unique_ptr<event_file>(new event_file(std::move(*opened), path));
    const auto size = events->file_->size();
    if (!size) return size.error();
    if (*size == 0)
        if (auto done = events->clear(wall_time); !done) return done.error();
    return events;
}

SKEIN_INLINE result<void> event_file::clear(double wall_time) {
    if (auto done = file_->truncate(0); !done) return done;
    return append(
        {.wall_time = wall_time, .step = 0, .file_version = "brain.Event:2", .scalars = {}});
}

SKEIN_INLINE result<void> event_file::append(const tb_event& event) {
    byte_buffer record;
    append_record(record, encode_event(event));
    const auto before = file_->size();
    if (!before) return before.error();
    auto done = file_->append(record);
    if (!done) (void)file_->truncate(*before); // half a record would hide all that follow it
    return done;
}

SKEIN_INLINE result<void> event_file::scalar(std::string_view tag, std::uint64_t step, double value,
                                             double wall_time) {
    tb_event event{.wall_time = wall_time,
                   .step = static_cast<std::int64_t>(step),
                   .file_version = {},
                   .scalars = {}};
    event.scalars.emplace_back(std::string(tag), static_cast<float>(value));
    return append(event);
}

SKEIN_INLINE result<void> event_file::truncate_after(std::uint64_t step) {
    posix_disk disk(link_policy::refuse);
    const auto bytes = disk.read_whole(path_, std::uint64_t{4} << 30);
    if (!bytes) return bytes.error();
    std::size_t good = 0;
    while (good < bytes->size()) {
        const auto record = read_record(byte_span(*bytes).subspan(good));
        if (!record) break;
        const auto event = decode_event(record->data);
        if (!event || (event->step >= 0 && static_cast<std::uint64_t>(event->step) > step)) break;
        good += record->file_bytes;
    }
    return good < bytes->size() ? file_->truncate(good) : result<void>();
}

} // namespace skein::report

// ======== skein/report/metrics.hpp
// Metrics that know how to be merged: over the steps of a window and over the ranks.
//
// A loss is a mean weighted by samples, a token count is a sum, a peak is a max. Each rank adds to
// its own metric_set; all metrics of all ranks are then merged by two all-reduces of packed float64
// (one sum, one max; min travels negated), never by one collective per metric.
//
//     metric_set m;
//     m.mean("loss", loss, samples).sum("tokens", n).last("lr", lr);
//     auto packed = m.pack(rank);                      // packed.sums, packed.maxima
//     all_reduce(packed.sums, sum); all_reduce(packed.maxima, max);
//     auto merged = m.unpack(packed).value();          // merged[0].name == "loss" ...
//
// Ranks need not report the same names: join() makes the names and kinds that all of them know, and
// a name counts for those that reported it. NaN stays: a broken number is not hidden by a good one
// beside it.


#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::report {

/// How values of one metric are put together.
enum class metric_kind : std::uint8_t {
    mean, ///< weighted mean: sum(value * weight) / sum(weight)
    sum,
    max,
    min,
    last, ///< the newest value of rank 0 (learning rate, step number)
};

using skein::to_string; // the overload below must not hide those of the core

/// The name of a kind, e.g. "mean".
[[nodiscard]] constexpr std::string_view to_string(metric_kind kind) noexcept {
    switch (kind) {
    case metric_kind::mean: return "mean";
    case metric_kind::sum: return "sum";
    case metric_kind::max: return "max";
    case metric_kind::min: return "min";
    case metric_kind::last: return "last";
    }
    return "unknown";
}

/// One merged number, ready for a file or a screen.
struct metric_value {
    std::string name{};
    double value = 0.0;

    friend bool operator==(const metric_value&, const metric_value&) = default;
};

/// Merged numbers with a shape, e.g. one per class: for files of JSON lines and for programs.
struct metric_array {
    std::string name{};
    std::vector<std::size_t> shape{};
    std::vector<double> values{}; ///< row-major

    friend bool operator==(const metric_array&, const metric_array&) = default;
};

/// All metrics of one rank as float64 for two all-reduces. Both lengths are a multiple of
/// metric_set::pack_unit, so ranks that report different names still meet in the same collective
/// and are told by unpack() instead of hanging.
struct packed_metrics {
    std::vector<double> sums;   ///< all-reduce with sum
    std::vector<double> maxima; ///< all-reduce with max
};

/// The metrics of one rank since the last clear(). Order of first use is order of output.
class metric_set {
public:
    static constexpr std::size_t pack_unit = 64;

    metric_set() = default;
    /// Refuses some names: errc::usage at the first report of one. The list outlives the set.
    explicit metric_set(std::span<const std::string_view> taken) : taken_(taken) {}

    /// A mean without a weight counts as much as weigh() says.
    metric_set& mean(std::string_view name, double value, std::optional<double> weight = {});
    metric_set& sum(std::string_view name, double value);
    metric_set& max(std::string_view name, double value);
    metric_set& min(std::string_view name, double value);
    metric_set& last(std::string_view name, double value);
    /// The same by a kind chosen at run time; weight counts only for a mean.
    metric_set& add(metric_kind kind, std::string_view name, double value,
                    std::optional<double> weight = {});
    /// What a mean without a weight of its own counts from here on: the samples of the batch in
    /// hand, so that a short batch counts less. 1 until it is said, and again with 1.
    void weigh(double each) noexcept { each_ = each; }

    [[nodiscard]] bool empty() const noexcept { return slots_.empty(); }
    [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
    void clear() noexcept { slots_.clear(); }

    /// Adds another set's metrics behind its own; they must have other names.
    metric_set& append(const metric_set& others);

    /// Names and kinds as text, and a set of the same that counts nothing yet: for a rank that has
    /// nothing to report in a merge that all take part in.
    [[nodiscard]] std::string layout() const;
    [[nodiscard]] static metric_set with_layout(std::string_view layout);

    /// Adds the names that only `others` has, counting nothing.
    metric_set& know(const metric_set& others);
    /// True when `other` has no name or kind that is not here.
    [[nodiscard]] bool covers(const metric_set& other) const noexcept;
    /// The layouts of all ranks as one set that counts nothing yet: rank 0's names, then those that
    /// only later ranks have. errc::mismatch with the name and both ranks when two have it as
    /// another kind.
    [[nodiscard]] static result<metric_set> join(std::span<const std::string> layouts);

    /// This rank's own numbers, not merged over ranks; those that were reported.
    [[nodiscard]] std::vector<metric_value> values() const;

    /// Hash of names and kinds in order: equal on all ranks or merging fails.
    [[nodiscard]] std::uint64_t layout_hash() const noexcept;

    /// Layout of `sums`: per mean (value * weight, weight), per sum its value, per last its value
    /// on rank 0 and 0 elsewhere. Of `maxima`: two halves of the layout hash, the same negated,
    /// then per max its value and per min its negated value, and for each name who reported it: the
    /// lowest rank is the largest number. Zeros pad both.
    [[nodiscard]] packed_metrics pack(int rank) const;

    /// Where rank 0 did not report a `last`: this rank's value, when it is the lowest that did,
    /// else 0; to be summed over ranks and given to put_lasts(). Mostly nothing; as many on every
    /// rank.
    [[nodiscard]] std::vector<double> lasts_of(const packed_metrics& merged, int rank) const;
    void put_lasts(packed_metrics& merged, std::span<const double> summed) const;

    /// The merged numbers that some rank reported, the same on every rank. errc::mismatch when the
    /// ranks packed other names.
    [[nodiscard]] result<std::vector<metric_value>> unpack(const packed_metrics& merged) const;

    /// "loss (mean), tokens (sum)" for messages.
    [[nodiscard]] std::string names() const;

private:
    struct slot_type {
        std::string name;
        metric_kind kind = metric_kind::mean;
        double value = 0.0;  // mean: sum of value * weight
        double weight = 0.0; // mean only
        bool used = false;   // reported, not only known
    };
    slot_type& slot(std::string_view name, metric_kind kind);
    slot_type& reported(std::string_view name, metric_kind kind);
    [[nodiscard]] const slot_type* find(std::string_view name) const noexcept;
    /// All ranks have packed the same hash.
    [[nodiscard]] static bool same_names(const packed_metrics& merged) noexcept;
    /// Where among the maxima it stands who reported the first name.
    [[nodiscard]] std::size_t first_reporter() const noexcept;
    /// Calls it with each `last` that a rank other than 0 gives: its number among the sums, that
    /// rank, its slot.
    template <class Call>
    void each_late(const packed_metrics& merged, Call call) const;

    double each_ = 1.0; // weight of a mean that has none
    std::vector<slot_type> slots_;
    std::span<const std::string_view> taken_;
};

/// The names of these numbers for a message: `there are: "loss", "val_loss"`; "there are none"
/// without any.
[[nodiscard]] std::string names_of(const std::vector<metric_value>& values);

/// The value called `name`, or nothing.
[[nodiscard]] const double* find_metric(const std::vector<metric_value>& values,
                                        std::string_view name) noexcept;

} // namespace skein::report


// ======== skein/report/detail/metrics.ipp
// Bodies of <skein/report/metrics.hpp>.


#include <algorithm>
#include <limits>

#include <fmt/core.h>

namespace skein::report {

namespace detail {

// A NaN, once in, stays: a broken number must not be hidden by a later good one.
SKEIN_INLINE double keep_nan(double old, double value, bool better) noexcept {
    return old != old ? old : (better || value != value ? value : old);
}
SKEIN_INLINE double finish_metric(metric_kind kind, double value, double weight) noexcept {
    if (kind != metric_kind::mean) return value;
    return weight == 0.0 ? std::numeric_limits<double>::quiet_NaN() : value / weight;
}
// Who reported a name travels as most_ranks - rank, so that the largest number is the lowest rank.
inline constexpr double most_ranks = 1u << 30;

} // namespace detail

SKEIN_INLINE metric_set& metric_set::mean(std::string_view name, double value,
                                          std::optional<double> weight) {
    auto& m = reported(name, metric_kind::mean);
    m.value += value * weight.value_or(each_);
    m.weight += weight.value_or(each_);
    return *this;
}
SKEIN_INLINE metric_set& metric_set::sum(std::string_view name, double value) {
    reported(name, metric_kind::sum).value += value;
    return *this;
}
SKEIN_INLINE metric_set& metric_set::max(std::string_view name, double value) {
    auto& m = reported(name, metric_kind::max);
    m.value = detail::keep_nan(m.value, value, m.value < value);
    return *this;
}
SKEIN_INLINE metric_set& metric_set::min(std::string_view name, double value) {
    auto& m = reported(name, metric_kind::min);
    m.value = detail::keep_nan(m.value, value, m.value > value);
    return *this;
}
SKEIN_INLINE metric_set& metric_set::last(std::string_view name, double value) {
    reported(name, metric_kind::last).value = value;
    return *this;
}

SKEIN_INLINE metric_set& metric_set::add(metric_kind kind, std::string_view name, double value,
                                         std::optional<double> weight) {
    switch (kind) {
    case metric_kind::mean: return mean(name, value, weight);
    case metric_kind::sum: return sum(name, value);
    case metric_kind::max: return max(name, value);
    case metric_kind::min: return min(name, value);
    case metric_kind::last: return last(name, value);
    }
    return *this;
}

SKEIN_INLINE metric_set& metric_set::append(const metric_set& others) {
    for (const auto& m : others.slots_) {
        auto& mine = slot(m.name, m.kind);
        mine.value = m.value;
        mine.weight = m.weight;
        mine.used = m.used;
    }
    return *this;
}

SKEIN_INLINE std::string metric_set::layout() const {
    std::string out;
    for (const auto& m : slots_) {
        out += static_cast<char>('0' + static_cast<int>(m.kind));
        out.append(m.name) += '\0';
    }
    return out;
}

SKEIN_INLINE metric_set metric_set::with_layout(std::string_view layout) {
    metric_set out;
    while (!layout.empty()) {
        const auto end = std::min(layout.find('\0'), layout.size());
        const auto kind = std::clamp(layout[0] - '0', 0, static_cast<int>(metric_kind::last));
        out.slot(layout.substr(1, end - 1), static_cast<metric_kind>(kind));
        layout.remove_prefix(std::min(end + 1, layout.size()));
    }
    return out;
}

SKEIN_INLINE metric_set& metric_set::know(const metric_set& others) {
    for (const auto& m : others.slots_)
        if (find(m.name) == nullptr) slot(m.name, m.kind);
    return *this;
}

SKEIN_INLINE bool metric_set::covers(const metric_set& other) const noexcept {
    return std::ranges::all_of(other.slots_, [&](const slot_type& theirs) {
        const auto* const mine = find(theirs.name);
        return mine != nullptr && mine->kind == theirs.kind;
    });
}

SKEIN_INLINE result<metric_set> metric_set::join(std::span<const std::string> layouts) {
    metric_set out;
    std::vector<std::size_t> first; // the rank that each name comes from
    for (std::size_t rank = 0; rank < layouts.size(); ++rank)
        for (const auto& m : with_layout(layouts[rank]).slots_) {
            const auto* const known = out.find(m.name);
            if (known == nullptr) {
                out.slot(m.name, m.kind);
                first.push_back(rank);
            } else if (known->kind != m.kind) {
                return error(errc::mismatch,
                             fmt::format("rank {} reported '{}' as a {}, rank {} as a {}", rank,
                                         m.name, to_string(m.kind),
                                         first[static_cast<std::size_t>(known - out.slots_.data())],
                                         to_string(known->kind)))
                    .with_hint("report one name by one kind on every rank");
            }
        }
    return out;
}

SKEIN_INLINE std::vector<metric_value> metric_set::values() const {
    std::vector<metric_value> out;
    out.reserve(slots_.size());
    for (auto& m : slots_)
        if (m.used) out.push_back({m.name, detail::finish_metric(m.kind, m.value, m.weight)});
    return out;
}

SKEIN_INLINE std::uint64_t metric_set::layout_hash() const noexcept {
    fnv1a h;
    for (auto& m : slots_) {
        h.text(m.name);
        h.byte(0);
        h.byte(static_cast<std::uint8_t>(m.kind));
    }
    return h.value();
}

SKEIN_INLINE packed_metrics metric_set::pack(int rank) const {
    packed_metrics p;
    const auto h = layout_hash();
    const auto low = static_cast<double>(h & 0xffffffffULL);
    const auto high = static_cast<double>(h >> 32);
    p.maxima = {low, high, -low, -high};
    for (auto& m : slots_) {
        switch (m.kind) {
        case metric_kind::mean:
            p.sums.push_back(m.value);
            p.sums.push_back(m.weight);
            break;
        case metric_kind::sum: p.sums.push_back(m.value); break;
        case metric_kind::last: p.sums.push_back(rank == 0 ? m.value : 0.0); break;
        case metric_kind::max: p.maxima.push_back(m.value); break;
        case metric_kind::min: p.maxima.push_back(-m.value); break;
        }
    }
    for (auto& m : slots_) p.maxima.push_back(m.used ? detail::most_ranks - rank : 0.0);
    for (auto* part : {&p.sums, &p.maxima})
        part->resize((part->size() + pack_unit - 1) / pack_unit * pack_unit, 0.0);
    return p;
}

SKEIN_INLINE bool metric_set::same_names(const packed_metrics& merged) noexcept {
    return merged.maxima[0] == -merged.maxima[2] && merged.maxima[1] == -merged.maxima[3];
}

SKEIN_INLINE std::size_t metric_set::first_reporter() const noexcept {
    return 4 + static_cast<std::size_t>(std::ranges::count_if(slots_, [](const slot_type& m) {
               return m.kind == metric_kind::max || m.kind == metric_kind::min;
           }));
}

template <class Call>
void metric_set::each_late(const packed_metrics& merged, Call call) const {
    if (!same_names(merged)) return; // on every rank alike: unpack() says so
    std::size_t sums = 0, reporters = first_reporter();
    for (const auto& m : slots_) {
        const double by = merged.maxima[reporters++];
        if (m.kind == metric_kind::last && by > 0 && by != detail::most_ranks)
            call(sums, static_cast<int>(detail::most_ranks - by), m);
        sums += m.kind == metric_kind::mean                                 ? 2
                : m.kind == metric_kind::sum || m.kind == metric_kind::last ? 1
                                                                            : 0;
    }
}

SKEIN_INLINE std::vector<double> metric_set::lasts_of(const packed_metrics& merged,
                                                      int rank) const {
    std::vector<double> mine;
    each_late(merged, [&](std::size_t, int by, const slot_type& m) {
        mine.push_back(by == rank ? m.value : 0.0);
    });
    return mine;
}

SKEIN_INLINE void metric_set::put_lasts(packed_metrics& merged,
                                        std::span<const double> summed) const {
    std::size_t next = 0;
    each_late(merged,
              [&](std::size_t sum, int, const slot_type&) { merged.sums[sum] = summed[next++]; });
}

SKEIN_INLINE result<std::vector<metric_value>> metric_set::unpack(
    const packed_metrics& merged) const {
    const auto mine = pack(0);
    if (merged.sums.size() != mine.sums.size() || merged.maxima.size() != mine.maxima.size())
        return error(errc::mismatch, "merged metrics have another length than this rank's");
    if (!same_names(merged))
        return error(errc::mismatch,
                     fmt::format("the ranks reported different metrics; this rank: {}", names()))
            .with_hint("call report() with the same names in the same order on every rank");
    std::vector<metric_value> out;
    out.reserve(slots_.size());
    std::size_t s = 0, x = 4, reporters = first_reporter();
    for (auto& m : slots_) {
        const bool in_sums = m.kind != metric_kind::max && m.kind != metric_kind::min;
        const double value = in_sums ? merged.sums[s++] : merged.maxima[x++];
        const double weight = m.kind == metric_kind::mean ? merged.sums[s++] : 1.0;
        if (merged.maxima[reporters++] <= 0) continue; // by nobody
        out.push_back({m.name, detail::finish_metric(
                                   m.kind, m.kind == metric_kind::min ? -value : value, weight)});
    }
    return out;
}

SKEIN_INLINE std::string metric_set::names() const {
    std::string out;
    for (auto& m : slots_)
        out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", m.name, to_string(m.kind));
    return out;
}

SKEIN_INLINE const metric_set::slot_type* metric_set::find(std::string_view name) const noexcept {
    const auto it = std::ranges::find(slots_, name, &slot_type::name);
    return it == slots_.end() ? nullptr : &*it;
}

SKEIN_INLINE metric_set::slot_type& metric_set::reported(std::string_view name, metric_kind kind) {
    auto& m = slot(name, kind);
    m.used = true;
    return m;
}

SKEIN_INLINE metric_set::slot_type& metric_set::slot(std::string_view name, metric_kind kind) {
    for (auto& m : slots_) {
        if (m.name != name) continue;
        if (m.kind != kind)
            throw error(errc::usage, fmt::format("metric '{}' was reported as {} and as {}", name,
                                                 to_string(m.kind), to_string(kind)))
                .with_hint("report it under two names");
        return m;
    }
    if (std::find(taken_.begin(), taken_.end(), name) != taken_.end())
        throw error(errc::usage, fmt::format("the metric name '{}' is taken by the trainer", name))
            .with_hint("report it under another name");
    const double infinity = std::numeric_limits<double>::infinity();
    const double start = kind == metric_kind::max   ? -infinity
                         : kind == metric_kind::min ? infinity
                                                    : 0.0;
    slots_.push_back({std::string(name), kind, start, 0.0, false});
    return slots_.back();
}

SKEIN_INLINE std::string names_of(const std::vector<metric_value>& values) {
    name_list list;
    for (const auto& m : values) list.add(m.name);
    return list.text("there are none");
}

SKEIN_INLINE const double* find_metric(const std::vector<metric_value>& values,
                                       std::string_view name) noexcept {
    auto it = std::find_if(values.begin(), values.end(), [&](auto& v) { return v.name == name; });
    return it == values.end() ? nullptr : &it->value;
}

} // namespace skein::report

// ======== skein/report/progress.hpp
// What a person sees while a run trains: one line that is rewritten on a terminal, plain lines now
// and then in a file or pipe, JSON lines for programs, or nothing.
//
//     progress show({.total = 2000, .mode = progress_mode::automatic});
//     show.update({.step = 120, .loss = 2.31, .tokens_per_s = 5200, .step_seconds = 0.19});
//     show.note("validation loss 2.28");      // a line that stays
//     show.finish();
//
//   gpt   120/2000  [###-------]   6%  loss 2.3100  5.2k tok/s  190 ms/step  ETA 05:57


#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::report {

/// Who reads the progress: a person, a file, nobody, or a program.
enum class progress_mode : std::uint8_t {
    automatic, ///< terminal if the output is one, else plain
    terminal,  ///< one line, rewritten
    plain,     ///< a line every `plain_interval`
    quiet,     ///< nothing at all
    json_lines ///< one JSON object per update and note
};

/// What the reader of one line needs. Missing numbers are left out.
struct progress_update {
    std::uint64_t step = 0; ///< finished steps
    std::optional<double> loss{};
    std::optional<double> tokens_per_s{};
    std::optional<double> step_seconds{}; ///< newest average time of a step
    std::optional<double> data_share{};   ///< part of it that waited for data; from 0.5 % on shown
    std::vector<std::pair<std::string, double>>
        more{}; ///< e.g. {"lr", 6e-4}; shown if there is space
    std::vector<std::pair<std::string, double>> also{}; ///< for programs: JSON lines only
};

/// What a progress line says of its run, and how often it is written.
struct progress_options {
    std::string name{};      ///< in front of the line
    std::uint64_t total = 0; ///< steps of the whole run; 0: unknown
    bool samples = false;    ///< update.tokens_per_s counts samples: say "samples/s"
    std::uint64_t first = 0; ///< the step the run (re)started at, for the ETA
    progress_mode mode = progress_mode::automatic;
    time_span terminal_interval = std::chrono::milliseconds(100);
    time_span plain_interval = std::chrono::milliseconds(10'000);
    std::function<void(std::string_view)> write{}; ///< default: stderr, at once
    std::function<int()> columns{};                ///< width of the terminal; default: asks stderr
    std::function<double()> clock{};               ///< seconds, monotonic; default: the real one
};

/// Owned by rank 0; one thread.
class progress {
public:
    explicit progress(progress_options options);
    /// Ends the line on a terminal.
    ~progress();
    progress(const progress&) = delete;
    progress& operator=(const progress&) = delete;

    /// Shows it, unless the interval of the mode has not passed (the last step always shows; JSON
    /// lines always).
    void update(const progress_update& now);
    /// A line that stays, above the rewritten one. In JSON mode {"event": "note", "text": ...}.
    void note(std::string_view text);
    /// A note of something that is not as it was asked for word by word.
    void notice(std::string_view text) { note(text); }
    /// A note that also a quiet run shows: something failed, and the run goes on.
    void failure(std::string_view text);
    /// The text of one JSON object: a line in JSON mode, nothing in the others.
    void event(std::string_view object);
    /// The last update is shown and the line ended. Safe to repeat.
    void finish();

    [[nodiscard]] progress_mode mode() const noexcept { return options_.mode; }
    /// The line for an update within `columns` characters; what update() shows. For tests too.
    [[nodiscard]] std::string line(const progress_update& now, int columns) const;
    /// Seconds to go, by the step time that the line shows, else by the average since `first`;
    /// nothing when unknown.
    [[nodiscard]] std::optional<double> seconds_left(const progress_update& now) const;

private:
    void show(const progress_update& now);
    void erase();

    progress_options options_;
    double started_ = 0.0;
    std::optional<double> shown_;
    std::optional<progress_update> pending_;
    bool line_open_ = false, finished_ = false;
};

/// "190 ms", "1.25 s"
[[nodiscard]] std::string human_seconds(double seconds);
/// "05:57", "1:02:03", "3d 04h"
[[nodiscard]] std::string human_clock(double seconds);
/// "5.2k", "1.30M", "812"
[[nodiscard]] std::string human_count(double count);
/// "1.2 GB"
[[nodiscard]] std::string human_bytes(double bytes);

} // namespace skein::report


// ======== skein/report/detail/progress.ipp
// Bodies of <skein/report/progress.hpp>.


// ======== skein/wire/json.hpp
// The one door to nlohmann-json: bounded parsing into result<json>, and text that is always the
// same.
//
//     auto manifest = parse_json(bytes, {.max_bytes = 16 << 20});
//     if (!manifest) return manifest.error();
//     auto step = json_uint(*manifest, "step");       // result<std::uint64_t>
//
// `json` keeps its keys sorted, so equal values give equal bytes. Doubles survive a round trip.


#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace skein {

using json = nlohmann::json;                 ///< keys sorted
using ordered_json = nlohmann::ordered_json; ///< keys in order of insertion, for lines people read

/// What parse_json() accepts from outside.
struct json_limits {
    std::size_t max_bytes = 16u << 20;
    int max_depth = 32;
};

/// Parses text from outside. errc::too_large above the limits, errc::malformed for anything that is
/// not JSON or names a key twice in one object. Never throws.
[[nodiscard]] inline result<json> parse_json(std::string_view text, json_limits limits = {}) {
    if (text.size() > limits.max_bytes)
        return error(errc::too_large, fmt::format("JSON of {} bytes is longer than the limit of {}",
                                                  text.size(), limits.max_bytes));
    std::vector<std::set<std::string>> keys; // of the objects that are open
    auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
        if (depth > limits.max_depth)
            throw error(errc::too_large,
                        fmt::format("JSON is nested deeper than {}", limits.max_depth));
        if (event == json::parse_event_t::object_start) keys.emplace_back();
        if (event == json::parse_event_t::object_end) keys.pop_back();
        if (event == json::parse_event_t::key &&
            !keys.back().insert(parsed.get<std::string>()).second)
            throw error(errc::malformed, fmt::format("JSON names the key '{}' twice",
                                                     parsed.get_ref<const std::string&>()));
        return true;
    };
    try {
        return json::parse(text.begin(), text.end(), watch);
    } catch (const error& refused) {
        return refused;
    } catch (const std::exception& broken) {
        // "[json.exception.parse_error.101] parse error at line 1, column 3: ...": keep the
        // sentence.
        std::string_view what = broken.what();
        if (auto end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
        return error(errc::malformed, fmt::format("not JSON: {}", what));
    }
}

[[nodiscard]] inline result<json> parse_json(byte_span bytes, json_limits limits = {}) {
    return parse_json(as_text(bytes), limits);
}

/// The text of a value: one line, or indented. NaN and infinity become null; bytes that are not
/// UTF-8 become U+FFFD.
template <class Json>
[[nodiscard]] std::string dump_json(const Json& value, int indent = -1) {
    return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

namespace detail {
inline error json_member_error(std::string_view key, std::string_view wanted) {
    return error(errc::malformed, fmt::format("'{}' is missing or is not {}", key, wanted));
}
/// A parsed 3 is unsigned, a 3 put in by a program is a signed integer; both are whole numbers >=
/// 0.
inline bool is_uint(const json& value) {
    return value.is_number_unsigned() ||
           (value.is_number_integer() && value.get<std::int64_t>() >= 0);
}
} // namespace detail

/// The member `key` of an object as an unsigned integer; errc::malformed if it is anything else.
[[nodiscard]] inline result<std::uint64_t> json_uint(const json& object, const std::string& key) {
    if (object.is_object())
        if (auto it = object.find(key); it != object.end() && detail::is_uint(*it))
            return it->get<std::uint64_t>();
    return detail::json_member_error(key, "a whole number >= 0");
}

/// The member `key` as a number.
[[nodiscard]] inline result<double> json_double(const json& object, const std::string& key) {
    if (object.is_object())
        if (auto it = object.find(key); it != object.end() && it->is_number())
            return it->get<double>();
    return detail::json_member_error(key, "a number");
}

/// The member `key` as text.
[[nodiscard]] inline result<std::string> json_string(const json& object, const std::string& key) {
    if (object.is_object())
        if (auto it = object.find(key); it != object.end() && it->is_string())
            return it->get<std::string>();
    return detail::json_member_error(key, "text");
}

/// The member `key` as an array of unsigned integers, at most max_items of them.
[[nodiscard]] inline result<std::vector<std::uint64_t>> json_uints(
    const json& object, const std::string& key, std::size_t max_items = SIZE_MAX) {
    std::vector<std::uint64_t> out;
    auto it = object.is_object() ? object.find(key) : object.end();
    if (!object.is_object() || it == object.end() || !it->is_array() || it->size() > max_items)
        return detail::json_member_error(key, "an array of whole numbers >= 0");
    out.reserve(it->size());
    for (auto& item : *it) {
        if (!detail::is_uint(item))
            return detail::json_member_error(key, "an array of whole numbers >= 0");
        out.push_back(item.get<std::uint64_t>());
    }
    return out;
}

} // namespace skein


// ======== skein/report/detail/progress.ipp, continued
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::report {

SKEIN_INLINE std::string human_seconds(double s) {
    if (!std::isfinite(s)) return "?";
    if (s < 1e-3) return fmt::format("{:.0f} us", s * 1e6);
    if (s < 1.0) return fmt::format("{:.{}f} ms", s * 1e3, s < 0.01 ? 1 : 0);
    if (s < 100.0) return fmt::format("{:.{}f} s", s, s < 10.0 ? 2 : 1);
    return human_clock(s);
}

SKEIN_INLINE std::string human_clock(double s) {
    if (!std::isfinite(s) || s < 0.0 || s > 1e9) return "--:--";
    const auto total = static_cast<std::uint64_t>(s + 0.5);
    const auto days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60;
    if (days > 0) return fmt::format("{}d {:02}h", days, hours);
    if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
    return fmt::format("{:02}:{:02}", minutes, total % 60);
}

namespace detail {
SKEIN_INLINE std::string human_scaled(double value, double base, const char* const* units,
                                      int count) {
    if (!std::isfinite(value)) return "?";
    int unit = 0;
    while (std::fabs(value) >= base * 0.9995 && unit + 1 < count) {
        value /= base;
        ++unit;
    }
    const int digits = unit == 0 || std::fabs(value) >= 99.95 ? 0
                       : std::fabs(value) >= 9.995            ? 1
                                                              : 2;
    return fmt::format("{:.{}f}{}", value, digits, units[unit]);
}
} // namespace detail

SKEIN_INLINE std::string human_count(double count) {
    static constexpr const char* units[] = {"", "k", "M", "G", "T"};
    return detail::human_scaled(count, 1000.0, units, 5);
}

SKEIN_INLINE std::string human_bytes(double bytes) {
    static constexpr const char* units[] = {" B", " kB", " MB", " GB", " TB"};
    return detail::human_scaled(bytes, 1000.0, units, 5);
}

SKEIN_INLINE progress::progress(progress_options options) : options_(std::move(options)) {
    if (!options_.write)
        options_.write = [](std::string_view text) {
            std::fwrite(text.data(), 1, text.size(), stderr);
            std::fflush(stderr);
        };
    if (!options_.columns)
        options_.columns = [] {
            winsize size{};
            if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
                return static_cast<int>(size.ws_col);
            return 80;
        };
    if (!options_.clock)
        options_.clock = [] {
            return std::chrono::duration<double>(system_clock().now().time_since_epoch()).count();
        };
    if (options_.mode == progress_mode::automatic) {
        const char* term = std::getenv("TERM");
        const bool dumb = term == nullptr || std::string_view(term) == "dumb";
        options_.mode =
            ::isatty(STDERR_FILENO) == 1 && !dumb ? progress_mode::terminal : progress_mode::plain;
    }
    started_ = options_.clock();
}

SKEIN_INLINE progress::~progress() {
    try {
        finish();
    } catch (...) { // a broken sink must not end the program while it unwinds
    }
}

SKEIN_INLINE std::optional<double> progress::seconds_left(const progress_update& now) const {
    if (options_.total == 0 || now.step <= options_.first) return std::nullopt;
    if (now.step >= options_.total) return 0.0;
    const double per_step = now.step_seconds.value_or(
        (options_.clock() - started_) / static_cast<double>(now.step - options_.first));
    return per_step * static_cast<double>(options_.total - now.step);
}

SKEIN_INLINE std::string progress::line(const progress_update& now, int columns) const {
    const auto width = static_cast<std::size_t>(std::max(columns, 20));
    const auto total = options_.total;
    std::string head = options_.name.empty() ? "" : options_.name + "  ";
    const std::string last = fmt::format("{}", total);
    head += total == 0 ? fmt::format("step {}", now.step)
                       : fmt::format("{:>{}}/{}", now.step, last.size(), last);

    // Parts in order of place; those with the highest rank fall out first on a narrow terminal.
    struct part {
        std::string text;
        int rank;
    };
    std::vector<part> parts;
    if (total != 0) {
        const double done =
            std::min(1.0, static_cast<double>(now.step) / static_cast<double>(total));
        const auto filled = static_cast<std::size_t>(done * 20.0);
        if (options_.mode == progress_mode::terminal)
            parts.push_back(
                {"[" + std::string(filled, '#') + std::string(20 - filled, '-') + "]", 5});
        parts.push_back({fmt::format("{:3.0f}%", std::floor(done * 100.0)), 2});
    }
    if (now.loss) parts.push_back({fmt::format("loss {:.4f}", *now.loss), 0});
    for (auto& [name, value] : now.more)
        parts.push_back({fmt::format("{} {:.4g}", name, value), 6});
    if (now.tokens_per_s)
        parts.push_back(
            {human_count(*now.tokens_per_s) + (options_.samples ? " samples/s" : " tok/s"), 3});
    if (now.step_seconds) parts.push_back({human_seconds(*now.step_seconds) + "/step", 4});
    if (now.data_share && *now.data_share >= 0.005)
        parts.push_back({fmt::format("data {:.0f} %", 100 * *now.data_share), 5});
    if (auto left = seconds_left(now)) parts.push_back({"ETA " + human_clock(*left), 1});

    auto length = [&] {
        std::size_t n = head.size();
        for (auto& p : parts) n += 2 + p.text.size();
        return n;
    };
    // The last column stays free: many terminals wrap a full line.
    while (length() > width - 1 && !parts.empty()) {
        auto worst = parts.begin();
        for (auto it = parts.begin(); it != parts.end(); ++it)
            if (it->rank >= worst->rank) worst = it;
        parts.erase(worst);
    }
    std::string out = head;
    for (auto& p : parts) out += "  " + p.text;
    if (out.size() > width - 1) out.resize(width - 1);
    return out;
}

SKEIN_INLINE void progress::show(const progress_update& now) {
    switch (options_.mode) {
    case progress_mode::terminal:
        options_.write("\r\x1b[K" + line(now, options_.columns()));
        line_open_ = true;
        break;
    case progress_mode::plain: options_.write(line(now, 1000) + "\n"); break;
    case progress_mode::json_lines: {
        ordered_json o = {{"event", "step"}, {"step", now.step}};
        if (options_.total != 0) o["total"] = options_.total;
        if (now.loss) o["loss"] = *now.loss;
        if (now.tokens_per_s)
            o[options_.samples ? "samples_per_s" : "tokens_per_s"] = *now.tokens_per_s;
        if (now.step_seconds) o["step_seconds"] = *now.step_seconds;
        for (auto* numbers : {&now.more, &now.also})
            for (auto& [name, value] : *numbers) o[name] = value;
        if (auto left = seconds_left(now)) o["eta_seconds"] = *left;
        options_.write(dump_json(o) + "\n");
        break;
    }
    case progress_mode::quiet:
    case progress_mode::automatic: break;
    }
}

SKEIN_INLINE void progress::update(const progress_update& now) {
    if (options_.mode == progress_mode::quiet) return;
    if (options_.mode == progress_mode::json_lines) return show(now);
    const double at = options_.clock();
    const auto interval = std::chrono::duration<double>(options_.mode == progress_mode::terminal
                                                            ? options_.terminal_interval
                                                            : options_.plain_interval);
    const bool last = options_.total != 0 && now.step >= options_.total;
    if (shown_ && at - *shown_ < interval.count() && !last) {
        pending_ = now;
        return;
    }
    shown_ = at;
    pending_.reset();
    show(now);
}

SKEIN_INLINE void progress::erase() {
    if (!line_open_) return;
    options_.write("\r\x1b[K");
    line_open_ = false;
}

SKEIN_INLINE void progress::note(std::string_view text) {
    if (options_.mode == progress_mode::quiet) return;
    if (options_.mode == progress_mode::json_lines) {
        options_.write(dump_json(ordered_json{{"event", "note"}, {"text", text}}) + "\n");
        return;
    }
    erase();
    options_.write(std::string(text) + "\n");
}

SKEIN_INLINE void progress::failure(std::string_view text) {
    if (options_.mode != progress_mode::quiet) return note(text);
    options_.write(std::string(text) + "\n");
}

SKEIN_INLINE void progress::event(std::string_view object) {
    if (options_.mode == progress_mode::json_lines) options_.write(std::string(object) + "\n");
}

SKEIN_INLINE void progress::finish() {
    if (finished_) return;
    finished_ = true;
    if (pending_) {
        show(*pending_);
        pending_.reset();
    }
    if (line_open_) options_.write("\n");
    line_open_ = false;
}

} // namespace skein::report

// ======== skein/report/run_dir.hpp
// The folder of one run, and the files a person opens: curves, logs, configuration.
//
//     runs/gpt/config.json  metrics.csv metrics.jsonl events.out.tfevents.* loss.svg checkpoints/
//
// Rows are appended once per report and never rewritten. A resumed run first cuts all rows after
// the step it resumes from, so that an interrupted run leaves the very same rows as an undisturbed
// one. The folder is locked for the life of the object (.lock), so that no two runs write into it.
// It has to belong to who runs the program (or to root), and links in the place of its files are
// not followed. A few descriptors are kept back for it: rows are written also when others have
// taken all the rest.
//
//     auto run = run_dir::create("runs", "gpt", {.resume = false});
//     run.write_config(config);
//     run.append({.step = 10, .values = {{"loss", 2.31}}, .timings = {{"tokens_per_s", 5200}}});


// ======== skein/report/svg.hpp
// A loss curve as a small SVG file: axes with round ticks, a legend, one line per series.
//
//     std::string svg = plot_svg({.title = "gpt"}, {{"train", train_points}, {"validation", val}});


#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace skein::report {

/// One point of a curve.
struct curve_point {
    double x = 0.0; ///< step
    double y = 0.0; ///< not finite: the line has a gap there

    friend bool operator==(const curve_point&, const curve_point&) = default;
};

/// One line of a plot.
struct curve {
    std::string label{};
    std::vector<curve_point> points{}; ///< by ascending x
};

/// What a plot says beside its curves, and its size.
struct plot_options {
    std::string title{};
    std::string x_label = "step";
    std::string y_label = "loss";
    int width = 760, height = 420; ///< pixels
    std::size_t max_points = 1000; ///< per line; more are averaged in bins of equal length
};

/// About `wanted` round numbers (1, 2 or 5 times a power of ten) inside [low, high].
[[nodiscard]] std::vector<double> round_ticks(double low, double high, int wanted);

/// The whole file. Deterministic; curves without points are left out.
[[nodiscard]] std::string plot_svg(const plot_options& options, const std::vector<curve>& curves);

} // namespace skein::report


// ======== skein/report/detail/svg.ipp
// Bodies of <skein/report/svg.hpp>.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/core.h>

namespace skein::report {

SKEIN_INLINE std::vector<double> round_ticks(double low, double high, int wanted) {
    if (!(high > low) || !std::isfinite(low) || !std::isfinite(high) || wanted < 1) return {};
    const double raw = (high - low) / wanted;
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    double step = 10.0 * power;
    for (double factor : {1.0, 2.0, 5.0})
        if (factor * power >= raw * 0.999) {
            step = factor * power;
            break;
        }
    std::vector<double> ticks;
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1.0)
        ticks.push_back(k == 0.0 ? 0.0 : k * step);
    return ticks;
}

namespace detail {

SKEIN_INLINE std::string xml_text(std::string_view text) {
    std::string out;
    for (char c : text) {
        if (c == '&')
            out += "&amp;";
        else if (c == '<')
            out += "&lt;";
        else if (c == '>')
            out += "&gt;";
        else if (c == '"')
            out += "&quot;";
        else if (static_cast<unsigned char>(c) >= 32)
            out += c;
    }
    return out;
}

/// 1500 as "1.5k", 0.25 as "0.25".
SKEIN_INLINE std::string tick_text(double value) {
    const double size = std::fabs(value);
    if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
    if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
    return fmt::format("{:.4g}", value);
}

/// At most max_points: the mean of each bin, drawn at the mean place. Bins break at gaps.
SKEIN_INLINE std::vector<curve_point> thin_out(const std::vector<curve_point>& points,
                                               std::size_t max_points) {
    if (points.size() <= max_points || max_points == 0) return points;
    const std::size_t bin = (points.size() + max_points - 1) / max_points;
    std::vector<curve_point> out;
    curve_point sum;
    std::size_t n = 0;
    auto close = [&] {
        if (n > 0) out.push_back({sum.x / static_cast<double>(n), sum.y / static_cast<double>(n)});
        sum = {};
        n = 0;
    };
    for (auto& p : points) {
        if (!std::isfinite(p.y)) {
            close();
            out.push_back(p);
            continue;
        }
        sum.x += p.x;
        sum.y += p.y;
        if (++n == bin) close();
    }
    close();
    return out;
}

// Colour-blind safe (Okabe and Ito), readable on white and on dark paper.
inline constexpr const char* line_colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                               "#e69f00"};

/// Where the lines are drawn, and which numbers lie there.
struct plot_frame {
    double left, right, top, bottom;
    double x0, x1, y0, y1;

    [[nodiscard]] double px(double x) const { return left + (x - x0) / (x1 - x0) * (right - left); }
    [[nodiscard]] double py(double y) const {
        return bottom - (y - y0) / (y1 - y0) * (bottom - top);
    }
};

/// The curves that have points, thinned out, and the frame around them.
SKEIN_INLINE plot_frame fit_frame(const plot_options& o, const std::vector<curve>& curves,
                                  std::vector<curve>& lines) {
    const double inf = std::numeric_limits<double>::infinity();
    double x0 = inf, x1 = -inf, y0 = inf, y1 = -inf;
    for (auto& c : curves) {
        lines.push_back({c.label, thin_out(c.points, o.max_points)});
        bool any = false;
        for (auto& p : lines.back().points) {
            if (!std::isfinite(p.x) || !std::isfinite(p.y)) continue;
            any = true;
            x0 = std::min(x0, p.x), x1 = std::max(x1, p.x);
            y0 = std::min(y0, p.y), y1 = std::max(y1, p.y);
        }
        if (!any) lines.pop_back();
    }
    if (lines.empty()) x0 = 0, x1 = 1, y0 = 0, y1 = 1;
    if (x1 <= x0) x0 -= 0.5, x1 += 0.5;
    if (y1 <= y0) y0 -= 0.5, y1 += 0.5;
    const double margin = (y1 - y0) * 0.06;
    y0 = y0 >= 0 && y0 < margin ? 0 : y0 - margin;
    y1 += margin;
    return {64, o.width - 20.0, o.title.empty() ? 20.0 : 44.0, o.height - 48.0, x0, x1, y0, y1};
}

/// Grid and ticks, which lie below the lines, and what the axes are called.
SKEIN_INLINE std::string svg_axes(const plot_options& o, const plot_frame& f) {
    std::string s;
    for (double t : round_ticks(f.y0, f.y1, 6))
        s += fmt::format(
            "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#e6e6e6\"/>"
            "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#555555\">{}</text>\n",
            f.left, f.right, f.py(t), f.py(t), f.left - 8, f.py(t) + 4, tick_text(t));
    for (double t : round_ticks(f.x0, f.x1, 8))
        s += fmt::format(
            "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#999999\"/>"
            "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\" "
            "fill=\"#555555\">{4}</text>\n",
            f.px(t), f.bottom, f.bottom + 5, f.bottom + 19, tick_text(t));
    s += fmt::format(
        "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\" fill=\"none\" stroke=\"#999999\"/>\n", f.left,
        f.top, f.bottom, f.right);
    s += fmt::format(
        "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>\n",
        (f.left + f.right) / 2, o.height - 10, xml_text(o.x_label));
    s += fmt::format("<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\" "
                     "fill=\"#555555\">{}</text>\n",
                     (f.top + f.bottom) / 2, xml_text(o.y_label));
    return s;
}

SKEIN_INLINE std::string svg_line(const curve& line, const plot_frame& f, const char* colour) {
    std::string s, path;
    bool pen_down = false;
    std::size_t drawn = 0;
    for (auto& p : line.points) {
        if (!std::isfinite(p.y)) {
            pen_down = false;
            continue;
        }
        path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", f.px(p.x), f.py(p.y));
        pen_down = true;
        ++drawn;
    }
    if (drawn > 1)
        s += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" "
                         "stroke-linejoin=\"round\" stroke-linecap=\"round\"/>\n",
                         path, colour);
    if (drawn <= 40) // few measurements: show where they are
        for (auto& p : line.points)
            if (std::isfinite(p.y))
                s += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n",
                                 f.px(p.x), f.py(p.y), colour);
    return s;
}

/// With the last value of each, top right: a loss falls, so that corner is free.
SKEIN_INLINE std::string svg_legend(const std::vector<curve>& lines, const plot_frame& f) {
    std::size_t widest = 0;
    std::vector<std::string> labels;
    for (auto& line : lines) {
        double last = 0.0;
        for (auto& p : line.points)
            if (std::isfinite(p.y)) last = p.y;
        labels.push_back(fmt::format("{}  {:.4g}", line.label, last));
        widest = std::max(widest, labels.back().size());
    }
    std::string s;
    const double legend = f.right - 40.0 - 7.0 * static_cast<double>(widest);
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const double y = f.top + 14.0 + 20.0 * static_cast<double>(i);
        s += fmt::format(
            "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
            "stroke-width=\"3\" stroke-linecap=\"round\"/>"
            "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#222222\" xml:space=\"preserve\">{}</text>\n",
            legend, legend + 18, y, y, line_colours[i % std::size(line_colours)], legend + 26,
            y + 4, xml_text(labels[i]));
    }
    return s;
}

} // namespace detail

SKEIN_INLINE std::string plot_svg(const plot_options& o, const std::vector<curve>& curves) {
    std::vector<curve> lines;
    const auto f = detail::fit_frame(o, curves, lines);
    std::string s = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" "
                                "height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
                                "font-family=\"system-ui, sans-serif\" font-size=\"12\">\n"
                                "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
                                o.width, o.height);
    if (!o.title.empty())
        s += fmt::format("<text x=\"{}\" y=\"26\" font-size=\"15\" font-weight=\"600\" "
                         "fill=\"#222222\">{}</text>\n",
                         f.left, detail::xml_text(o.title));
    s += detail::svg_axes(o, f);
    for (std::size_t i = 0; i < lines.size(); ++i)
        s += detail::svg_line(lines[i], f,
                              detail::line_colours[i % std::size(detail::line_colours)]);
    s += detail::svg_legend(lines, f);
    if (lines.empty())
        s += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" "
                         "fill=\"#999999\">no data yet</text>\n",
                         (f.left + f.right) / 2, (f.top + f.bottom) / 2);
    return s + "</svg>\n";
}

} // namespace skein::report


// ======== skein/report/run_dir.hpp, continued
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::report {

/// One report. `values` are reproducible numbers and go into every file; `timings` depend on the
/// machine and go into metrics.jsonl and the event file only, so that metrics.csv of two equal runs
/// is equal byte for byte.
struct metrics_row {
    std::uint64_t step = 0;
    std::vector<metric_value> values{};
    std::vector<metric_value> timings{};
    std::vector<metric_array> arrays{}; ///< reproducible; into metrics.jsonl only
};

/// One column of metrics.csv: its points in order, x is the step.
struct metrics_column {
    std::string name;
    std::vector<curve_point> points;
};

/// The columns of the metrics.csv in a run's folder; empty without one. Takes no lock and changes
/// nothing there: a run that is at work may be read.
///   errors  permission_denied, io; malformed: another file of that name
[[nodiscard]] std::vector<metrics_column> read_metrics(const std::string& folder);

/// How a run's folder is opened.
struct run_dir_options {
    bool resume = false; ///< go on in an existing folder; else a taken name gets ".2", ".3", ...
    /// How long a folder to resume may be in use: a run that was just killed needs a moment to end.
    time_span patience = std::chrono::milliseconds(2000);
    /// Seconds since 1970 for event files; default: the system's clock. For tests.
    double (*wall_time)() = nullptr;
};

/// Owned by rank 0 alone; one thread.
class run_dir {
public:
    /// Creates (or, with resume, opens) <root>/<name> and locks it. Throws permission_denied,
    /// not_found, disk_full or io with the path and what to do; permission_denied also for a folder
    /// of another owner to resume; errc::usage for a name that is not one folder, and when another
    /// process is at work in the folder to resume.
    [[nodiscard]] static run_dir create(const std::string& root, const std::string& name,
                                        run_dir_options options = {});

    /// The "job_id" of the config.json in a run's folder; empty without one. Changes nothing there.
    [[nodiscard]] static std::string written_by(const std::string& path);

    run_dir(run_dir&&) noexcept;
    run_dir& operator=(run_dir&&) noexcept;
    ~run_dir();

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    /// The name in use, with its number when the one asked for was taken.
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    /// What a person should know about the folder: that the name was taken, that locks do not work.
    [[nodiscard]] const std::vector<std::string>& notices() const noexcept { return notices_; }
    [[nodiscard]] std::string checkpoints() const { return path_ + "/checkpoints"; }
    [[nodiscard]] std::string file(std::string_view base) const {
        return path_ + "/" + std::string(base);
    }

    /// Drops every row and event after `step`; call once after the checkpoint of `step` was loaded.
    void truncate_after(std::uint64_t step);
    /// Drops all rows and events: a run that was interrupted before its first checkpoint starts
    /// over.
    void clear();

    /// Appends to metrics.csv, metrics.jsonl and the event file; written out before it returns (not
    /// synced). A new name in `values` rewrites metrics.csv once with one more column. A row that
    /// cannot be written is kept and tried again with the next one; then this throws why.
    void append(const metrics_row& row);
    /// Tries rows that wait again; throws why they still do.
    void flush();
    /// Rows that at least one file lacks.
    [[nodiscard]] std::size_t waiting() const noexcept;

    /// config.json, replaced durably: the text of one JSON object.
    void write_config(std::string_view config);
    /// Its text, or nothing without one; errc::malformed when it is not JSON.
    [[nodiscard]] std::optional<std::string> read_config() const;
    /// Takes a result.json away: the run that ended so goes on.
    void remove_result();

    /// The points of one column of metrics.csv, in order.
    [[nodiscard]] std::vector<curve_point> curve(std::string_view column) const;
    /// loss.svg of the columns that are there, e.g. {"loss", "val_loss"}.
    void write_svg(const std::vector<std::string>& columns = {"loss", "val_loss"},
                   std::string_view title = {});

private:
    run_dir();
    template <class Keep>
    void cut(Keep keep);
    [[nodiscard]] error unusable(const error& why) const;
    [[nodiscard]] bool claim(bool wanted);
    void open_files();
    [[nodiscard]] result<void> write_header();
    [[nodiscard]] result<void> write_csv();
    [[nodiscard]] result<void> write_lines();
    [[nodiscard]] result<void> write_events();
    [[nodiscard]] result<void> write_waiting();

    std::string path_, name_;
    std::vector<std::string> notices_;
    unique_fd lock_;
    fork_guard unshared_; // of the lock, which a child of this process would keep
    descriptor_reserve reserve_;
    run_dir_options options_;
    std::vector<std::string> columns_; // of metrics.csv, without "step"
    std::unique_ptr<event_file> events_;
    std::uint64_t csv_bytes_ = 0, lines_bytes_ = 0; // up to the last whole row
    bool header_waits_ = false;
    std::vector<metrics_row> csv_waits_;
    std::vector<std::string> lines_wait_; // of metrics.jsonl
    std::vector<tb_event> events_wait_;
};

} // namespace skein::report


// ======== skein/report/detail/run_dir.ipp
// Bodies of <skein/report/run_dir.hpp>.


// ======== skein/report/detail/run_lock.ipp
// One run folder, one run: a lock on <folder>/.lock that the kernel releases when its process ends,
// however it ends. The file itself stays; its text tells who holds it.


#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::report::detail {

enum class lock_outcome : std::uint8_t {
    held,        ///< ours while fd lives
    busy,        ///< another process has it
    unsupported, ///< the file system cannot lock (some NFS)
    failed       ///< the file cannot be opened; `number` is the errno
};

struct run_lock {
    lock_outcome outcome = lock_outcome::failed;
    unique_fd fd;
    int number = 0;
    bool made = false; ///< the lock's file was not there before
};

/// "pid 4711 on node-3"; the text of a lock's file.
[[nodiscard]] SKEIN_INLINE std::string lock_owner() {
    return fmt::format("pid {} on {}", ::getpid(), proc::host_name());
}

/// Who wrote the file of a lock last.
[[nodiscard]] SKEIN_INLINE std::string lock_owner_of(const std::string& folder) {
    posix_disk disk(link_policy::refuse);
    const auto bytes = disk.read_whole(join_path(folder, ".lock"), 4096);
    if (!bytes || bytes->empty()) return "another process";
    return skein::to_string(byte_span(*bytes));
}

/// Tries to lock a folder; a busy one is tried again until `patience` is over, for a run that was
/// killed a moment ago and whose last process is on its way out.
[[nodiscard]] SKEIN_INLINE run_lock lock_run(const std::string& folder, time_span patience) {
    const auto path = join_path(folder, ".lock");
    const auto end = system_clock().now() + patience;
    run_lock out;
    // Exclusive creation first: where locks do not work it is what decides between two fresh runs.
    out.fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    out.made = bool(out.fd);
    if (!out.fd && errno == EEXIST)
        out.fd.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!out.fd) {
        out.number = errno;
        return out;
    }
    while (skein::detail::retry_eintr([&] { return ::flock(out.fd.get(), LOCK_EX | LOCK_NB); }) !=
           0) {
        if (errno != EWOULDBLOCK) {
            out.outcome = lock_outcome::unsupported;
            return out;
        }
        if (system_clock().now() >= end) {
            out.outcome = lock_outcome::busy;
            return out;
        }
        ::poll(nullptr, 0, 10); // rank 0 has no loop here, and nothing else to do
    }
    out.outcome = lock_outcome::held;
    const auto owner = lock_owner();
    if (::ftruncate(out.fd.get(), 0) == 0) // for people; on a full disk they do without
        (void)!::pwrite(out.fd.get(), owner.data(), owner.size(), 0);
    return out;
}

} // namespace skein::report::detail


// ======== skein/report/detail/run_dir.ipp, continued
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::report {

namespace detail {

/// The shortest text that reads back as the same double; "nan", "inf", "-inf".
SKEIN_INLINE std::string number_text(double value) {
    char text[64];
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    return {text, end};
}

SKEIN_INLINE double parse_number(std::string_view text) {
    double value = std::numeric_limits<double>::quiet_NaN();
    const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
    return end.ec == std::errc() ? value : std::numeric_limits<double>::quiet_NaN();
}

/// The fields of one CSV line; names are quoted when they hold a comma or a quote.
SKEIN_INLINE std::vector<std::string> split_csv(std::string_view line) {
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"')
            fields.back() += line[++i];
        else if (c == '"')
            quoted = !quoted;
        else if (c == ',' && !quoted)
            fields.emplace_back();
        else
            fields.back() += c;
    }
    return fields;
}

SKEIN_INLINE std::string csv_field(std::string_view text) {
    if (text.find_first_of(",\"\n\r") == std::string_view::npos) return std::string(text);
    std::string out = "\"";
    for (char c : text) {
        if (c == '"') out += '"';
        out += c == '\n' || c == '\r' ? ' ' : c;
    }
    return out + "\"";
}

SKEIN_INLINE std::string csv_header(const std::vector<std::string>& columns) {
    std::string out = "step";
    for (auto& column : columns) out += "," + csv_field(column);
    return out + "\n";
}

/// The complete lines of a text, without their ends; a last line without '\n' is a torn one.
SKEIN_INLINE std::vector<std::string_view> whole_lines(std::string_view text) {
    std::vector<std::string_view> lines;
    for (std::size_t end; (end = text.find('\n')) != std::string_view::npos;
         text.remove_prefix(end + 1))
        lines.push_back(text.substr(0, end));
    return lines;
}

SKEIN_INLINE std::optional<std::uint64_t> leading_step(std::string_view line) {
    std::uint64_t step = 0;
    const auto end = std::from_chars(line.data(), line.data() + line.size(), step);
    return end.ec == std::errc() ? std::optional(step) : std::nullopt;
}

/// The text of a file, or nothing if there is none.
SKEIN_INLINE std::string read_text(const std::string& path) {
    posix_disk disk(link_policy::refuse);
    const auto bytes = disk.read_whole(path, std::uint64_t{8} << 30);
    if (bytes) return skein::to_string(byte_span(*bytes));
    if (bytes.error().code() == errc::not_found) return {};
    throw bytes.error();
}

/// Appends behind the first `good` bytes; what an earlier failure left behind them is cut off.
SKEIN_INLINE result<void> append_text(const std::string& path, std::uint64_t& good,
                                      std::string_view text) {
    posix_disk disk(link_policy::refuse);
    auto opened = disk.open(path, open_mode::append);
    if (!opened) return opened.error();
    const auto size = (*opened)->size();
    if (!size) return size.error();
    if (*size > good)
        if (auto done = (*opened)->truncate(good); !done) return done;
    good = std::min(good, *size);
    if (auto done = (*opened)->write_at(good, as_bytes(text)); !done) return done;
    good += text.size();
    return {};
}

/// Where the last complete line of a text ends.
SKEIN_INLINE std::uint64_t whole_bytes(std::string_view text) {
    const auto end = text.rfind('\n');
    return end == std::string_view::npos ? 0 : end + 1;
}

/// Who new files in a folder belong to, as its file system sees it (root's need not be root's
/// there).
SKEIN_INLINE result<std::uint32_t> owner_of_new_files(const std::string& folder) {
    const auto path = join_path(folder, fmt::format(".owner-{:016x}", system_random().next()));
    const unique_fd made(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!made) return errno_error(errno, "create", path);
    struct stat info{};
    const int rc = ::fstat(made.get(), &info), number = errno;
    ::unlink(path.c_str());
    if (rc != 0) return errno_error(number, "stat", path);
    return static_cast<std::uint32_t>(info.st_uid);
}

/// Nothing when a folder is ours or root's, or not there; else whose it is.
SKEIN_INLINE std::optional<error> foreign(const std::string& folder, std::uint32_t mine) {
    struct stat info{};
    if (::stat(folder.c_str(), &info) != 0 || info.st_uid == mine || info.st_uid == 0)
        return std::nullopt;
    return error(errc::permission_denied,
                 fmt::format("{} belongs to user {}, this program's files to user {}", folder,
                             info.st_uid, mine));
}

SKEIN_INLINE double system_wall_time() {
    return std::chrono::duration<double>(system_clock().wall()).count();
}

} // namespace detail

SKEIN_INLINE run_dir::run_dir() = default;
SKEIN_INLINE run_dir::run_dir(run_dir&&) noexcept = default;
SKEIN_INLINE run_dir& run_dir::operator=(run_dir&&) noexcept = default;
SKEIN_INLINE run_dir::~run_dir() = default;

SKEIN_INLINE error run_dir::unusable(const error& why) const {
    return error(why.code(), fmt::format("run folder {} cannot be used: {}", path_, why.text()))
        .with_hint(why.code() == errc::disk_full
                       ? "free some space there or choose another folder"
                       : "choose another folder for runs, or change its owner or mode");
}

/// Makes and locks path_. False when it is another run's, and not the one that is wanted.
SKEIN_INLINE bool run_dir::claim(bool wanted) {
    posix_disk disk(link_policy::refuse);
    if (auto made = disk.make_dirs(path_); !made) throw unusable(made.error());
    // A folder counts as taken once it holds rows or checkpoints; an empty one may have been made
    // by hand. Asked with the lock in hand: between two runs that begin at once the lock decides.
    const auto has = [&](const char* what) {
        return disk.status(join_path(path_, what)).has_value();
    };
    const auto taken = [&] { return has("metrics.csv") || has("checkpoints"); };
    if (!wanted && taken()) return false;
    const auto mine = detail::owner_of_new_files(path_);
    if (!mine) throw unusable(mine.error());
    for (const auto& folder : {path_, checkpoints()})
        if (const auto whose = detail::foreign(folder, *mine)) {
            if (!wanted) return false;
            throw unusable(*whose);
        }

    auto lock = detail::lock_run(path_, wanted ? options_.patience : time_span());
    switch (lock.outcome) {
    case detail::lock_outcome::failed:
        throw unusable(errno_error(lock.number, "lock", join_path(path_, ".lock")));
    case detail::lock_outcome::busy:
        if (!wanted) return false;
        throw error(errc::usage,
                    fmt::format("{} is in use by {}", path_, detail::lock_owner_of(path_)))
            .with_hint("wait for it, or give the run another name");
    case detail::lock_outcome::unsupported:
        if (!wanted && !lock.made) return false;
        notices_.push_back(fmt::format("{} cannot be locked there: let no two runs use it", path_));
        return true;
    case detail::lock_outcome::held: break;
    }
    if (!wanted && taken()) return false;
    lock_ = std::move(lock.fd);
    unshared_ = fork_guard(lock_.get());
    return true;
}

SKEIN_INLINE run_dir run_dir::create(const std::string& root, const std::string& name,
                                     run_dir_options options) {
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
        throw error(errc::usage, fmt::format("'{}' cannot be the name of a run", name))
            .with_hint("use one folder name, e.g. gpt");
    posix_disk disk(link_policy::refuse);
    run_dir run;
    run.options_ = options;
    if (run.options_.wall_time == nullptr) run.options_.wall_time = &detail::system_wall_time;
    run.path_ = root;
    if (auto made = disk.make_dirs(root); !made) throw run.unusable(made.error());
    run.name_ = name;
    run.path_ = join_path(root, name);
    for (int k = 2; !run.claim(options.resume); ++k) {
        run.name_ = fmt::format("{}.{}", name, k);
        run.path_ = join_path(root, run.name_);
    }
    if (run.name_ != name)
        run.notices_.insert(
            run.notices_.begin(),
            fmt::format("{} exists: this run is {} (resume it to go on with the old one)",
                        join_path(root, name), run.path_));

    // Find out now, not after an hour, whether it can be written.
    const auto probe = join_path(run.path_, ".write-test");
    auto written = disk.write_whole(probe, as_bytes(std::string_view("ok")));
    (void)disk.remove(probe);
    if (!written) throw run.unusable(written.error());
    run.open_files();
    return run;
}

SKEIN_INLINE void run_dir::open_files() {
    auto events = event_file::open(path_, options_.wall_time());
    if (!events) throw unusable(events.error());
    events_ = std::move(*events);
    lines_bytes_ = detail::whole_bytes(detail::read_text(file("metrics.jsonl")));

    const auto csv = detail::read_text(file("metrics.csv"));
    const auto lines = detail::whole_lines(csv);
    if (lines.empty()) {
        write_header().value();
        return;
    }
    csv_bytes_ = detail::whole_bytes(csv);
    columns_ = detail::split_csv(lines[0]);
    if (columns_[0] != "step")
        throw error(errc::malformed,
                    fmt::format("{} does not begin with a column 'step'", file("metrics.csv")))
            .with_hint("move it away or choose another run name");
    columns_.erase(columns_.begin());
}

SKEIN_INLINE void run_dir::truncate_after(std::uint64_t step) {
    cut([step](std::uint64_t row) { return row <= step; });
    events_->truncate_after(step).value();
}

SKEIN_INLINE void run_dir::clear() {
    columns_.clear();
    cut([](std::uint64_t) { return false; });
    events_->clear(options_.wall_time()).value();
}

template <class Keep>
void run_dir::cut(Keep keep) {
    posix_disk disk(link_policy::refuse);
    const auto csv = detail::read_text(file("metrics.csv"));
    std::string kept = detail::csv_header(columns_);
    const auto lines = detail::whole_lines(csv);
    for (std::size_t i = 1; i < lines.size(); ++i)
        if (auto step = detail::leading_step(lines[i]); step && keep(*step))
            kept.append(lines[i]) += '\n';
    if (kept != csv) disk.replace(file("metrics.csv"), as_bytes(std::string_view(kept))).value();
    csv_bytes_ = kept.size();

    const auto rows = detail::read_text(file("metrics.jsonl"));
    kept.clear();
    for (auto line : detail::whole_lines(rows)) {
        const auto row = parse_json(line);
        const auto step = row ? json_uint(*row, "step") : result<std::uint64_t>(row.error());
        if (step && keep(*step)) kept.append(line) += '\n';
    }
    if (kept != rows) disk.replace(file("metrics.jsonl"), as_bytes(std::string_view(kept))).value();
    lines_bytes_ = kept.size();
}

namespace detail {
/// As lists in lists, by its shape.
[[nodiscard]] SKEIN_INLINE ordered_json nested(const metric_array& array, std::size_t dimension = 0,
                                               std::size_t first = 0) {
    if (dimension == array.shape.size()) return array.values[first];
    std::size_t stride = 1;
    for (std::size_t d = dimension + 1; d < array.shape.size(); ++d) stride *= array.shape[d];
    ordered_json list = ordered_json::array();
    for (std::size_t i = 0; i < array.shape[dimension]; ++i)
        list.push_back(nested(array, dimension + 1, first + i * stride));
    return list;
}
} // namespace detail

SKEIN_INLINE void run_dir::append(const metrics_row& row) {
    for (auto& v : row.values)
        if (std::find(columns_.begin(), columns_.end(), v.name) == columns_.end()) {
            columns_.push_back(v.name);
            header_waits_ = true;
        }
    csv_waits_.push_back(row);

    ordered_json object = {{"step", row.step}};
    tb_event event{.wall_time = options_.wall_time(),
                   .step = static_cast<std::int64_t>(row.step),
                   .file_version = {},
                   .scalars = {}};
    for (auto* part : {&row.values, &row.timings})
        for (auto& v : *part) {
            object[v.name] = v.value;
            event.scalars.emplace_back(v.name, static_cast<float>(v.value));
        }
    for (const auto& array : row.arrays) object[array.name] = detail::nested(array);
    lines_wait_.push_back(dump_json(object) + "\n");
    if (!event.scalars.empty()) events_wait_.push_back(std::move(event));
    flush();
}

SKEIN_INLINE void run_dir::flush() {
    reserve_.run([this] { return write_waiting(); }).value();
}

/// All three are tried; the first reason of those that failed.
SKEIN_INLINE result<void> run_dir::write_waiting() {
    const result<void> all[] = {write_csv(), write_lines(), write_events()};
    for (const auto& done : all)
        if (!done) return done;
    return {};
}

SKEIN_INLINE std::size_t run_dir::waiting() const noexcept {
    return std::max({csv_waits_.size(), lines_wait_.size(), events_wait_.size()});
}

/// metrics.csv anew with all columns; rows that lack the last ones get empty fields.
SKEIN_INLINE result<void> run_dir::write_header() {
    posix_disk disk(link_policy::refuse);
    const auto path = file("metrics.csv");
    std::string text = detail::csv_header(columns_);
    if (disk.status(path)) {
        const auto bytes = disk.read_whole(path, std::uint64_t{8} << 30);
        if (!bytes) return bytes.error();
        const auto lines = detail::whole_lines(as_text(*bytes));
        for (std::size_t i = 1; i < lines.size(); ++i) {
            const auto missing = columns_.size() + 1 - detail::split_csv(lines[i]).size();
            text.append(lines[i]).append(missing, ',') += '\n';
        }
    }
    if (auto done = disk.replace(path, as_bytes(std::string_view(text))); !done) return done;
    csv_bytes_ = text.size();
    header_waits_ = false;
    return {};
}

SKEIN_INLINE result<void> run_dir::write_csv() {
    if (csv_waits_.empty()) return {};
    if (header_waits_)
        if (auto done = write_header(); !done) return done;
    std::string text;
    for (const auto& row : csv_waits_) {
        text += fmt::format("{}", row.step);
        for (auto& column : columns_) {
            text += ',';
            if (auto* value = find_metric(row.values, column)) text += detail::number_text(*value);
        }
        text += '\n';
    }
    if (auto done = detail::append_text(file("metrics.csv"), csv_bytes_, text); !done) return done;
    csv_waits_.clear();
    return {};
}

SKEIN_INLINE result<void> run_dir::write_lines() {
    if (lines_wait_.empty()) return {};
    std::string text;
    for (const auto& line : lines_wait_) text += line;
    if (auto done = detail::append_text(file("metrics.jsonl"), lines_bytes_, text); !done)
        return done;
    lines_wait_.clear();
    return {};
}

SKEIN_INLINE result<void> run_dir::write_events() {
    std::size_t written = 0;
    result<void> done;
    while (written < events_wait_.size() && (done = events_->append(events_wait_[written])))
        ++written;
    events_wait_.erase(events_wait_.begin(),
                       events_wait_.begin() + static_cast<std::ptrdiff_t>(written));
    return done;
}

SKEIN_INLINE void run_dir::write_config(std::string_view config) {
    posix_disk disk(link_policy::refuse);
    disk.replace(file("config.json"), as_bytes(config)).value();
}

SKEIN_INLINE std::optional<std::string> run_dir::read_config() const {
    auto text = detail::read_text(file("config.json"));
    if (text.empty()) return std::nullopt;
    if (const auto parsed = parse_json(std::string_view(text)); !parsed)
        throw error(parsed.error()).with_where(file("config.json"));
    return text;
}

SKEIN_INLINE void run_dir::remove_result() {
    posix_disk disk(link_policy::refuse);
    const auto removed = disk.remove(file("result.json"));
    if (!removed && removed.error().code() != errc::not_found) throw removed.error();
}

SKEIN_INLINE std::string run_dir::written_by(const std::string& path) {
    posix_disk disk(link_policy::refuse);
    const auto bytes = disk.read_whole(path + "/config.json");
    if (!bytes) return {}; // what cannot be read is not ours
    const auto parsed = parse_json(*bytes);
    if (!parsed || !parsed->is_object() || !parsed->contains("job_id")) return {};
    const auto& id = parsed->at("job_id");
    return id.is_string() ? id.get<std::string>() : std::string();
}

SKEIN_INLINE std::vector<metrics_column> read_metrics(const std::string& folder) {
    const auto path = folder + "/metrics.csv";
    const auto csv = detail::read_text(path);
    const auto lines = detail::whole_lines(csv);
    std::vector<metrics_column> columns;
    if (lines.empty()) return columns;
    const auto names = detail::split_csv(lines[0]);
    if (names[0] != "step")
        throw error(errc::malformed, path + " does not begin with a column 'step'")
            .with_hint("it is no file of a run");
    for (std::size_t c = 1; c < names.size(); ++c) columns.push_back({names[c], {}});
    for (std::size_t i = 1; i < lines.size(); ++i) {
        const auto step = detail::leading_step(lines[i]);
        if (!step) continue;
        const auto fields = detail::split_csv(lines[i]);
        for (std::size_t c = 1; c < std::min(fields.size(), names.size()); ++c)
            if (!fields[c].empty())
                columns[c - 1].points.push_back(
                    {static_cast<double>(*step), detail::parse_number(fields[c])});
    }
    return columns;
}

SKEIN_INLINE std::vector<curve_point> run_dir::curve(std::string_view column) const {
    std::vector<curve_point> points;
    const auto it = std::find(columns_.begin(), columns_.end(), column);
    if (it == columns_.end()) return points;
    const auto place = static_cast<std::size_t>(it - columns_.begin()) + 1;
    const auto csv = detail::read_text(file("metrics.csv"));
    const auto lines = detail::whole_lines(csv);
    for (std::size_t i = 1; i < lines.size(); ++i) {
        const auto fields = detail::split_csv(lines[i]);
        if (place >= fields.size() || fields[place].empty()) continue;
        if (auto step = detail::leading_step(lines[i]))
            points.push_back({static_cast<double>(*step), detail::parse_number(fields[place])});
    }
    return points;
}

SKEIN_INLINE void run_dir::write_svg(const std::vector<std::string>& columns,
                                     std::string_view title) {
    reserve_
        .run([&]() -> result<void> {
            std::vector<report::curve> curves;
            try {
                for (auto& column : columns)
                    curves.push_back({column == "loss"       ? "train"
                                      : column == "val_loss" ? "validation"
                                                             : column,
                                      curve(column)});
            } catch (const error& why) {
                return why;
            }
            const auto svg =
                plot_svg({.title = title.empty() ? name_ : std::string(title)}, curves);
            posix_disk disk(link_policy::refuse);
            return disk.replace(file("loss.svg"), as_bytes(std::string_view(svg)));
        })
        .value();
}

} // namespace skein::report

// ======== skein/report/settings.hpp
// Settings of a program by name: what its run writes into config.json beside its own.
//
//     trainer.describe({{"text", "docs"}, {"layers", 4}, {"lr", 3e-3}});


#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace skein::report {

/// One value: a truth, a number or a text.
class setting {
public:
    template <std::same_as<bool> T>
    setting(T truth) : value_(truth) {}
    template <std::signed_integral T>
    setting(T number) : value_(static_cast<std::int64_t>(number)) {}
    template <std::unsigned_integral T>
        requires(!std::same_as<T, bool>)
    setting(T number) : value_(static_cast<std::uint64_t>(number)) {}
    template <std::floating_point T>
    setting(T number) : value_(static_cast<double>(number)) {}
    template <std::convertible_to<std::string_view> T>
    setting(const T& text) : value_(std::string(std::string_view(text))) {}

    using value_type = std::variant<bool, std::int64_t, std::uint64_t, double, std::string>;
    [[nodiscard]] const value_type& value() const noexcept { return value_; }

private:
    value_type value_;
};

/// Names and values in the order given; of a name given twice the last counts.
class settings {
public:
    settings() = default;
    settings(std::initializer_list<std::pair<std::string, setting>> entries) : entries_(entries) {}

    settings& set(std::string name, setting value) {
        entries_.emplace_back(std::move(name), std::move(value));
        return *this;
    }
    /// What `more` names counts in place of an entry of the same name.
    settings& append(const settings& more) {
        entries_.insert(entries_.end(), more.entries_.begin(), more.entries_.end());
        return *this;
    }
    [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
    /// The text of one JSON object.
    [[nodiscard]] std::string text() const;

private:
    std::vector<std::pair<std::string, setting>> entries_;
};

} // namespace skein::report


// ======== skein/report/detail/settings.ipp
// Bodies of <skein/report/settings.hpp>.


namespace skein::report {

SKEIN_INLINE std::string settings::text() const {
    json object = json::object();
    for (const auto& [name, entry] : entries_)
        std::visit([&](const auto& value) { object[name] = value; }, entry.value());
    return dump_json(object);
}

} // namespace skein::report

// ======== skein/report/summary.hpp
// The last screen of a run: what came out, where it is, and what to type next.
//
//     std::string text = summary_text({.name = "gpt", .path = "runs/gpt", .steps = 2000, ...});


#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::report {

/// What the last screen is made of.
struct run_summary {
    std::string name{};      ///< in use
    std::string asked{};     ///< the name that was asked for, when it was taken; or empty
    std::string path{};      ///< "runs/gpt"
    std::uint64_t steps = 0; ///< finished
    std::uint64_t total = 0; ///< asked for
    std::uint64_t first = 0; ///< where this start of the program began
    double seconds = 0.0;    ///< of this start
    std::optional<double> tokens_per_s{};
    bool samples = false;                   ///< tokens_per_s counts samples
    std::optional<double> peak_rss_bytes{}; ///< largest of the ranks
    int workers = 1;
    int restarts = 0;
    std::vector<metric_value> results{}; ///< e.g. {"loss", 1.83}, {"val_loss", 1.91}
    std::uint64_t val_step = 0;          ///< the step of "val_loss"; 0: the last one
    std::string checkpoint{};            ///< the newest, or empty
    std::string command{};               ///< how the program was called; empty: no resume line
    /// What goes on, and what gives the steps; empty when the program has no such flags.
    std::string resume_flag = "--resume", steps_flag = "--steps", name_flag = "--run";
    std::string launcher{}; ///< what started the ranks, or empty: the program itself
    std::string stopped{};  ///< "by SIGINT": why it ended early, or empty
    /// Only for summary_json(): members of the program's own, at its end.
    std::vector<std::pair<std::string, std::string>> texts{};
};

/// A word as one types it into a shell: in quotes when it needs them.
[[nodiscard]] std::string shell_word(std::string_view word);
/// The command that goes on with a run: with the resume flag, with the name in use when it is
/// another than the one asked for, and when it is complete with twice the steps.
[[nodiscard]] std::string next_command(const run_summary& run);
/// The screen, lines ending with '\n'.
[[nodiscard]] std::string summary_text(const run_summary& run);
/// The same as the text of one JSON object {"event": "summary", ...}.
[[nodiscard]] std::string summary_json(const run_summary& run);

} // namespace skein::report


// ======== skein/report/detail/summary.ipp
// Bodies of <skein/report/summary.hpp>.


#include <algorithm>
#include <string>

#include <fmt/core.h>

namespace skein::report {

namespace detail {

[[nodiscard]] SKEIN_INLINE bool is_complete(const run_summary& run) {
    return run.stopped.empty() && run.steps >= run.total;
}

/// Where a word of a command line ends, quotes and backslashes as in a shell.
SKEIN_INLINE std::size_t end_of_word(std::string_view command, std::size_t at) {
    char quote = '\0';
    for (; at < command.size(); ++at) {
        const char c = command[at];
        if (c == '\\' && quote != '\'')
            ++at;
        else if (quote != '\0')
            quote = c == quote ? '\0' : quote;
        else if (c == '\'' || c == '"')
            quote = c;
        else if (c == ' ')
            break;
    }
    return std::min(at, command.size());
}

/// Gives `flag` a value in a command line, in place or at its end.
SKEIN_INLINE void set_flag(std::string& command, const std::string& flag,
                           const std::string& value) {
    bool found = false;
    for (std::size_t at = 0; at < command.size();) {
        const auto end = end_of_word(command, at);
        const auto word = std::string_view(command).substr(at, end - at);
        if (word.starts_with(flag + "=")) {
            command.replace(at + flag.size() + 1, end - at - flag.size() - 1, value);
            at += flag.size() + 1 + value.size() + 1;
            found = true;
        } else if (word == flag && end < command.size()) {
            command.replace(end + 1, end_of_word(command, end + 1) - end - 1, value);
            at = end + 1 + value.size() + 1;
            found = true;
        } else {
            at = end + 1;
        }
    }
    if (!found) command += " " + flag + " " + value;
}

/// "2000 of 2000", and after a restart or a resume how many of them this start did.
[[nodiscard]] SKEIN_INLINE std::string steps_text(const run_summary& run) {
    auto text = run.total == 0 ? fmt::format("{}", run.steps)
                               : fmt::format("{} of {}", run.steps, run.total);
    if (run.first > 0 && run.steps > run.first)
        text += fmt::format(", {} of them since the {}", run.steps - run.first,
                            run.restarts > 0 ? "restart" : "resume");
    return text + " in " + human_clock(run.seconds);
}

} // namespace detail

SKEIN_INLINE std::string shell_word(std::string_view word) {
    if (!word.empty() && word.find_first_of(" \t\n'\"\\$&|;<>()*?#~`!") == word.npos)
        return std::string(word);
    std::string out = "'"; // in single quotes nothing is special but the quote itself
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

SKEIN_INLINE std::string next_command(const run_summary& run) {
    auto command = run.command;
    if (detail::is_complete(run) && !run.steps_flag.empty())
        detail::set_flag(command, run.steps_flag, std::to_string(2 * run.steps));
    if (!run.asked.empty() && run.asked != run.name && !run.name_flag.empty())
        detail::set_flag(command, run.name_flag, shell_word(run.name));
    if (!run.resume_flag.empty() &&
        (" " + command + " ").find(" " + run.resume_flag + " ") == std::string::npos)
        command += " " + run.resume_flag;
    return command;
}

SKEIN_INLINE std::string summary_text(const run_summary& run) {
    std::string out = "\n";
    auto row = [&](std::string_view label, const std::string& text) {
        out += fmt::format("  {:<12}{}\n", label, text);
    };
    const bool complete = detail::is_complete(run);
    out += fmt::format("{} {}\n\n", run.name.empty() ? "run" : run.name,
                       complete              ? "finished"
                       : run.stopped.empty() ? "stopped"
                                             : "stopped " + run.stopped);
    row("steps", detail::steps_text(run));
    auto workers = fmt::format("{} worker{}", run.workers, run.workers == 1 ? "" : "s");
    if (run.peak_rss_bytes) workers += ", at most " + human_bytes(*run.peak_rss_bytes) + " each";
    if (run.tokens_per_s)
        row("speed", fmt::format("{} {}/s, {}", human_count(*run.tokens_per_s),
                                 run.samples ? "samples" : "tokens", workers));
    else
        row("world", workers); // no step was run
    if (run.restarts > 0)
        row("failures", fmt::format("{} restart{} from a checkpoint", run.restarts,
                                    run.restarts == 1 ? "" : "s"));
    for (auto& metric : run.results) {
        const bool older =
            metric.name == "val_loss" && run.val_step != 0 && run.val_step != run.steps;
        row(metric.name, fmt::format("{:.4f}", metric.value) +
                             (older ? fmt::format(" (step {})", run.val_step) : ""));
    }
    if (!run.path.empty()) row("folder", run.path);
    if (!run.checkpoint.empty()) row("checkpoint", run.checkpoint);

    out += "\nnext\n";
    auto next = [&](const std::string& command, std::string_view what) {
        out += fmt::format("  {}\n      {}\n", command, what);
    };
    if (!run.command.empty() && !run.checkpoint.empty()) {
        std::string what =
            complete ? "train on from the last checkpoint" : "go on from the last checkpoint";
        if (complete && run.steps_flag.empty()) what += ", with more steps";
        if (run.resume_flag.empty()) what += ", with resume_mode::latest in its run_config";
        next((run.launcher.empty() ? "" : "under the same launcher: ") + next_command(run), what);
    }
    if (!run.path.empty()) {
        next("tensorboard --logdir " + shell_word(run.path), "curves in the browser");
        next("xdg-open " + shell_word(run.path + "/loss.svg"), "the loss curve");
    }
    return out;
}

SKEIN_INLINE std::string summary_json(const run_summary& run) {
    ordered_json o = {
        {"event", "summary"},     {"name", run.name},       {"path", run.path},
        {"steps", run.steps},     {"total", run.total},     {"first_step", run.first},
        {"seconds", run.seconds}, {"workers", run.workers}, {"restarts", run.restarts}};
    if (run.tokens_per_s) o[run.samples ? "samples_per_s" : "tokens_per_s"] = *run.tokens_per_s;
    if (run.peak_rss_bytes) o["peak_rss_bytes"] = *run.peak_rss_bytes;
    for (auto& metric : run.results) o["results"][metric.name] = metric.value;
    if (run.val_step != 0) o["val_step"] = run.val_step;
    if (!run.checkpoint.empty()) o["checkpoint"] = run.checkpoint;
    if (!run.stopped.empty()) o["stopped"] = run.stopped;
    for (auto& [name, text] : run.texts) o[name] = text;
    return dump_json(o);
}

} // namespace skein::report

// ======== skein/torch.hpp
// Every public header of the layer torch.
// Written by scripts/check_mirror.py --write.


// ======== skein/torch/tensor.hpp
// Tensors and no more of LibTorch: for headers that only hold or hand on tensors and modules.


#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

#include <ATen/core/Tensor.h>

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace torch::nn {
class Module;
}
namespace torch::autograd {
struct Node;
}

// ======== skein/torch/torch.hpp
// The only door to LibTorch: every other header of skein that needs a tensor includes this one.
//
// LibTorch's own headers do not pass our warning flags; the pragmas keep its noise out of programs
// that turn warnings into errors.


#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

#include <torch/torch.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

static_assert(TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 6),
              "skein needs LibTorch >= 2.6 (2.15 is what its tests run on)");

// ======== skein/train/build.hpp
// Building a model that is too large for one rank: each block is cut up as soon as it is built.
//
//     // instead of: GPT model(options);
//     auto model = trainer.build([&] { return GPT(options); });
//     trainer.fit(model, ...);
//
// When the constructor of a block (skein::unit) has ended, only the rows that this rank owns are
// kept, and the block's parameters are empty tensors until fit(). All ranks draw the same initial
// values, from generators in the same state, so the result equals a model that was built whole, bit
// for bit; the most memory in use is the owned rows, what belongs to no block, and one block.
//
// A model whose root draws or loads the values of its blocks does that with for_each_parameter(),
// which puts one parameter together at a time; writing to a cut parameter itself is refused when
// fit() begins, but for p.data(), which hides what it does. C++ modules take no device, so there is
// no meta device to build on.


// ======== skein/train/collective.hpp
// The few blocking exchanges that training needs besides gradients, the same for one rank and many.
//
// All are collective: every rank calls them in the same order. In a world of one they cost nothing.
//
//     // every metric of every rank, reduced by kind
//     auto merged = merge(ctx, metrics);
//     require_same(ctx, hash, "the model");            // errc::mismatch names the odd rank


// ======== skein/train/checkpoint.hpp
// Checkpoints that are either whole or not there, for any number of writers and readers.
//
//     <dir>/step-00000120/shard-0-of-2.safetensors     each rank writes its share: tensors, or rows
//                                                      of them
//                         shard-1-of-2.safetensors
//                         manifest.json                 last: sizes, a CRC-32C per chunk, what is
//                                                       where
//
// A save writes into step-N.part-*, syncs every file, writes the manifest, syncs the folder,
// renames it to step-N and syncs the parent: a crash at any point leaves the new checkpoint or the
// one before it. Loading verifies every byte first; a broken checkpoint is named, renamed to
// .broken and passed over for the one before it.
//
//     checkpointer saver(disk, "runs/gpt/checkpoints", {.keep_last = 2}, world);
//     saver.save(state);                              // every rank calls it
//     if (auto found = saver.load_latest()) found->read("model.wte", bytes_of_wte);


// ======== skein/train/manifest.hpp
// The last file of a checkpoint: what the others must look like, and what the run was.
//
//     {"format": "skein-checkpoint-2", "step": 120, "world_size": 2, "chunk_bytes": 1048576,
//      "shards": [{"name": "shard-0-of-2.safetensors", "bytes": 4242, "crc32c": [...]}, ...],
//      "tensors": {"model.wte": {"dtype": "F32", "shape": [50, 64],
//                                "parts": [{"shard": 0, "first_row": 0, "rows": 25}, ...]}, ...},
//      "extra": {...}, "metrics": {...}, "config_hash": "...", "skein": "0.1.0", "wall_time": ...}
//
// "crc32c" has one number per chunk of each shard; "self" is the CRC-32C of the manifest itself.
// Format 1 has no "tensors": each tensor is whole in one shard, and the shards' own headers say
// which.


#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

/// One file of a checkpoint.
struct shard_entry {
    std::string name; ///< within the checkpoint's folder
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> crcs; ///< one per chunk, the last chunk may be short

    friend bool operator==(const shard_entry&, const shard_entry&) = default;
};

/// Rows of a tensor, along dimension 0, in one shard. A tensor of no dimensions is one row.
struct part_entry {
    std::size_t shard = 0; ///< index into checkpoint_manifest::shards
    std::int64_t first_row = 0;
    std::int64_t rows = 0;

    friend bool operator==(const part_entry&, const part_entry&) = default;
};

/// A whole tensor, and where its rows are: at least one part, by first row, at most one per shard.
struct tensor_entry {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::vector<part_entry> parts;

    friend bool operator==(const tensor_entry&, const tensor_entry&) = default;
};
/// The tensors of a checkpoint by name.
using tensor_table = std::map<std::string, tensor_entry>;

/// What manifest.json holds.
struct checkpoint_manifest {
    static constexpr std::string_view format = "skein-checkpoint-2";
    static constexpr std::string_view format_1 = "skein-checkpoint-1"; ///< still read

    int version = 2; ///< of the format it was read from
    std::uint64_t step = 0;
    int world_size = 1; ///< of the run that wrote it
    std::uint64_t chunk_bytes = 0;
    std::vector<shard_entry> shards;
    tensor_table
        tensors; ///< every row in one part; empty as long as only a manifest of format 1 is read
    std::map<std::string, double> metrics;
    std::string extra = "{}"; ///< the text of one JSON object
    std::string config_hash;
    std::string skein_version = SKEIN_VERSION_STRING;
    double wall_time = 0.0; ///< seconds since 1970 when it was written
};

/// The bytes of the file, in the newest format: indented JSON that ends with its own checksum.
/// Throws errc::malformed when `extra` is not JSON.
[[nodiscard]] std::string dump_manifest(const checkpoint_manifest& manifest);

/// errc::corrupt when the checksum does not fit, malformed when a field is missing or wrong,
/// not_supported for another format.
[[nodiscard]] result<checkpoint_manifest> parse_manifest(byte_span bytes);

/// Adds up checksums per chunk while a file is written or read in pieces of any size.
class chunk_checksums {
public:
    explicit chunk_checksums(std::uint64_t chunk_bytes) : chunk_(chunk_bytes) {}

    void add(byte_span part);
    /// The checksums so far; the last chunk may be short.
    [[nodiscard]] std::vector<std::uint32_t> finish();
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

private:
    void close_chunk();

    std::uint64_t chunk_, filled_ = 0, bytes_ = 0;
    std::uint32_t current_ = 0;
    std::vector<std::uint32_t> crcs_;
};

namespace detail {
inline constexpr std::string_view manifest_tail = ",\n  \"self\": \"00000000\"\n}\n";
/// The end of a manifest whose other bytes are `body`: the member "self" and what closes the
/// object.
[[nodiscard]] std::string make_manifest_tail(std::string_view body);

/// How many rows a tensor of this shape has.
[[nodiscard]] inline std::int64_t rows_of(const std::vector<std::int64_t>& shape) noexcept {
    return shape.empty() ? 1 : shape.front();
}
/// Puts the parts in order. errc::malformed, with the tensor and the rows, unless they are at most
/// one per shard, lie in the shape, do not overlap and cover it.
[[nodiscard]] result<void> check_parts(const std::string& name, tensor_entry& tensor,
                                       std::size_t shards);
} // namespace detail

} // namespace skein::train


// ======== skein/train/detail/manifest.ipp
// Bodies of <skein/train/manifest.hpp>.
//
// The file is the dump of all members, cut before its closing brace, then the member "self": the
// checksum of every byte before it. So every bit of the file is covered.


// ======== skein/train/safetensors.hpp
// Tensors in a file that every tool reads: safetensors, written as a stream, read with suspicion.
//
// Layout: 8 bytes little-endian length of the header, the header (JSON, padded with spaces so that
// the data begins at a multiple of 8), then the data without a hole. Tensors lie in the order of
// descending element size, then name, so each is aligned to its element.
//   source: huggingface/safetensors, README "Format" and safetensors/src/tensor.rs
//
//     auto plan = plan_safetensors(tensors, {{"format", "pt"}}).value();
//     write_safetensors(plan, [&](byte_span part) { return file.append(part); }).value();
//     auto back = parse_safetensors(bytes);         // result: views into bytes


#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

/// A named tensor and its bytes (row-major, little-endian), owned by someone else.
struct tensor_view {
    std::string name{};
    std::string dtype{};               ///< as in the format: F32, BF16, F64, I64, U8, ...
    std::vector<std::int64_t> shape{}; ///< empty for a scalar
    byte_span bytes{};
};

/// What a header says of one tensor.
struct tensor_info {
    std::string name;
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t offset = 0; ///< from the start of the file
    std::uint64_t bytes = 0;

    friend bool operator==(const tensor_info&, const tensor_info&) = default;
};

/// Text by name: the metadata of a file.
using string_map = std::map<std::string, std::string>;

/// Bytes of one element, or nothing for an unknown type (sub-byte types are not supported).
[[nodiscard]] constexpr std::optional<std::size_t> dtype_size(std::string_view dtype) noexcept {
    if (dtype == "F64" || dtype == "I64" || dtype == "U64" || dtype == "C64") return 8;
    if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
    if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
    if (dtype == "BOOL" || dtype == "U8" || dtype == "I8" || dtype == "F8_E4M3" ||
        dtype == "F8_E5M2" || dtype == "F8_E8M0")
        return 1;
    return std::nullopt;
}

/// Bytes of a tensor, or an error when the type is unknown or the product does not fit 63 bits.
[[nodiscard]] result<std::uint64_t> tensor_bytes(std::string_view dtype,
                                                 std::span<const std::int64_t> shape);

/// Header and order of a file to write. The views must outlive it.
struct safetensors_plan {
    std::string head;                        ///< the length and the padded header, as in the file
    std::vector<const tensor_view*> tensors; ///< in file order
    std::uint64_t file_bytes = 0;
};

/// Lays a file out. errc::invalid_argument when a name repeats, is "__metadata__", or bytes, type
/// and shape of a tensor do not agree.
[[nodiscard]] result<safetensors_plan> plan_safetensors(std::span<const tensor_view> tensors,
                                                        const string_map& metadata = {});

/// Streams the file: sink(byte_span) -> result<void> is called for the head and then for each
/// tensor. Nothing is copied. The first error of the sink ends it.
template <class Sink>
[[nodiscard]] result<void> write_safetensors(const safetensors_plan& plan, Sink&& sink) {
    if (result<void> done = sink(as_bytes(std::string_view(plan.head))); !done) return done;
    for (const tensor_view* t : plan.tensors)
        if (!t->bytes.empty())
            if (result<void> done = sink(t->bytes); !done) return done;
    return {};
}

/// A header that has been checked: types, shapes and offsets agree and the data has no hole.
struct safetensors_header {
    std::vector<tensor_info> tensors; ///< in the order of their offsets
    string_map metadata;
    std::uint64_t data_offset = 0; ///< where the data begins in the file

    [[nodiscard]] const tensor_info* find(std::string_view name) const noexcept;
};

/// Bytes; a longer header is refused as too large.
inline constexpr std::uint64_t max_safetensors_header = 100'000'000;

/// How many bytes of a file the header takes, its length included: errc::malformed or too_large
/// when the first 8 bytes cannot begin a file of file_bytes.
[[nodiscard]] result<std::uint64_t> safetensors_head_bytes(byte_span first8,
                                                           std::uint64_t file_bytes);

/// Checks the head (as long as safetensors_head_bytes() said) of a file of file_bytes.
[[nodiscard]] result<safetensors_header> parse_safetensors_head(byte_span head,
                                                                std::uint64_t file_bytes);

/// A whole file in memory: the views point into `file`, which must outlive them.
struct safetensors_content {
    std::vector<tensor_view> tensors;
    string_map metadata;
};
/// Checks the whole file: malformed or too_large, with what is wrong.
[[nodiscard]] result<safetensors_content> parse_safetensors(byte_span file);

} // namespace skein::train


// ======== skein/train/detail/safetensors.ipp
// Bodies of <skein/train/safetensors.hpp>.


#include <algorithm>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE const tensor_info* safetensors_header::find(std::string_view name) const noexcept {
    auto it = std::find_if(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == name; });
    return it == tensors.end() ? nullptr : &*it;
}

SKEIN_INLINE result<std::uint64_t> tensor_bytes(std::string_view dtype,
                                                std::span<const std::int64_t> shape) {
    const auto element = dtype_size(dtype);
    if (!element)
        return error(errc::not_supported, fmt::format("element type '{}' is not known", dtype));
    constexpr std::uint64_t limit = INT64_MAX;
    std::uint64_t bytes = *element;
    bool empty = false;
    for (auto extent : shape) {
        if (extent < 0)
            return error(errc::malformed, fmt::format("an extent of {} in a shape", extent));
        if (extent == 0) {
            empty = true;
            continue;
        }
        if (bytes > limit / static_cast<std::uint64_t>(extent))
            return error(errc::too_large,
                         "the extents of a shape multiply to more than 2^63 bytes");
        bytes *= static_cast<std::uint64_t>(extent);
    }
    return empty ? 0 : bytes;
}

SKEIN_INLINE result<safetensors_plan> plan_safetensors(std::span<const tensor_view> tensors,
                                                       const string_map& metadata) {
    safetensors_plan plan;
    for (auto& t : tensors) {
        const auto bytes = tensor_bytes(t.dtype, t.shape);
        if (!bytes)
            return error(errc::invalid_argument,
                         fmt::format("tensor '{}': {}", t.name, bytes.error().text()));
        if (*bytes != t.bytes.size())
            return error(errc::invalid_argument,
                         fmt::format("tensor '{}': {} bytes given, type and shape say {}", t.name,
                                     t.bytes.size(), *bytes));
        if (t.name == "__metadata__")
            return error(errc::invalid_argument, "a tensor cannot be called __metadata__");
        plan.tensors.push_back(&t);
    }
    std::sort(plan.tensors.begin(), plan.tensors.end(), [](auto* a, auto* b) {
        const auto size_a = *dtype_size(a->dtype), size_b = *dtype_size(b->dtype);
        return size_a != size_b ? size_a > size_b : a->name < b->name;
    });

    json header = json::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    std::uint64_t offset = 0;
    for (auto* t : plan.tensors) {
        if (header.contains(t->name))
            return error(errc::invalid_argument,
                         fmt::format("two tensors are called '{}'", t->name));
        const auto end = offset + t->bytes.size();
        header[t->name] = {
            {"dtype", t->dtype}, {"shape", t->shape}, {"data_offsets", {offset, end}}};
        offset = end;
    }
    std::string text = dump_json(header);
    text.append((8 - text.size() % 8) % 8, ' ');
    if (text.size() > max_safetensors_header)
        return error(errc::too_large,
                     fmt::format("a header of {} bytes is longer than the format's "
                                 "{}",
                                 text.size(), max_safetensors_header));
    plan.head.resize(8);
    store_le<std::uint64_t>(reinterpret_cast<std::byte*>(plan.head.data()), text.size());
    plan.head += text;
    plan.file_bytes = plan.head.size() + offset;
    return plan;
}

SKEIN_INLINE result<std::uint64_t> safetensors_head_bytes(byte_span first8,
                                                          std::uint64_t file_bytes) {
    if (first8.size() < 8 || file_bytes < 8)
        return error(errc::malformed,
                     fmt::format("{} bytes are too short for a safetensors file", file_bytes));
    const auto length = load_le<std::uint64_t>(first8.data());
    if (length > max_safetensors_header)
        return error(errc::too_large,
                     fmt::format("a header of {} bytes is longer than the format's {}", length,
                                 max_safetensors_header));
    if (length > file_bytes - 8)
        return error(errc::malformed,
                     fmt::format("the header claims {} bytes but the file ends after "
                                 "{}",
                                 length, file_bytes));
    return 8 + length;
}

namespace detail {

/// One entry of the header, offsets still relative to the data.
SKEIN_INLINE result<tensor_info> parse_tensor_info(const std::string& name, const json& entry) {
    auto bad = [&](std::string why) {
        return error(errc::malformed, fmt::format("tensor '{}': {}", name, why));
    };
    if (!entry.is_object() || entry.size() != 3) return bad("is not {dtype, shape, data_offsets}");
    const auto dtype = json_string(entry, "dtype");
    const auto shape = json_uints(entry, "shape", 64);
    const auto range = json_uints(entry, "data_offsets", 2);
    if (!dtype) return bad(dtype.error().text());
    if (!shape) return bad(shape.error().text());
    if (!range) return bad(range.error().text());
    if (range->size() != 2 || (*range)[0] > (*range)[1])
        return bad("data_offsets are not [begin, end]");

    tensor_info info{.name = name,
                     .dtype = *dtype,
                     .shape = {},
                     .offset = (*range)[0],
                     .bytes = (*range)[1] - (*range)[0]};
    for (auto extent : *shape) {
        if (extent > INT64_MAX) return bad("an extent does not fit 63 bits");
        info.shape.push_back(static_cast<std::int64_t>(extent));
    }
    const auto bytes = tensor_bytes(info.dtype, info.shape);
    if (!bytes) return bad(bytes.error().text());
    if (*bytes != info.bytes)
        return bad(
            fmt::format("type and shape need {} bytes, data_offsets give {}", *bytes, info.bytes));
    return info;
}

} // namespace detail

SKEIN_INLINE result<safetensors_header> parse_safetensors_head(byte_span head,
                                                               std::uint64_t file_bytes) {
    const auto head_bytes =
        safetensors_head_bytes(head.first(std::min<std::size_t>(head.size(), 8)), file_bytes);
    if (!head_bytes) return head_bytes.error();
    if (head.size() < *head_bytes) return error(errc::malformed, "the header is cut off");
    const auto text = as_text(head.subspan(8, *head_bytes - 8));
    if (text.empty() || text.front() != '{')
        return error(errc::malformed, "the header does not begin with '{'");
    auto parsed = parse_json(text, {.max_bytes = max_safetensors_header, .max_depth = 8});
    if (!parsed)
        return error(parsed.error().code(), "safetensors header: " + parsed.error().text());

    safetensors_header out;
    out.data_offset = *head_bytes;
    for (auto& [name, entry] : parsed->items()) {
        if (name == "__metadata__") {
            if (!entry.is_object()) return error(errc::malformed, "__metadata__ is not an object");
            for (auto& [key, value] : entry.items()) {
                if (!value.is_string())
                    return error(errc::malformed,
                                 fmt::format("__metadata__ '{}' is not text", key));
                out.metadata[key] = value.get<std::string>();
            }
            continue;
        }
        auto info = detail::parse_tensor_info(name, entry);
        if (!info) return info.error();
        out.tensors.push_back(std::move(*info));
    }

    // No overlap and no hole: sorted by offset, each tensor begins where the one before it ended.
    std::sort(out.tensors.begin(), out.tensors.end(), [](auto& a, auto& b) {
        return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
    });
    std::uint64_t end = 0;
    for (auto& info : out.tensors) {
        if (info.offset != end)
            return error(errc::malformed,
                         fmt::format("tensor '{}' begins at {}, but the data before it "
                                     "ends at {} ({})",
                                     info.name, info.offset, end,
                                     info.offset < end ? "overlap" : "hole"));
        end += info.bytes;
        info.offset += out.data_offset;
    }
    const auto data = file_bytes - out.data_offset;
    if (end != data)
        return error(errc::malformed,
                     fmt::format("the tensors take {} bytes, the file has {} ({})", end, data,
                                 data < end ? "truncated" : "bytes left over"));
    return out;
}

SKEIN_INLINE result<safetensors_content> parse_safetensors(byte_span file) {
    auto header = parse_safetensors_head(file, file.size());
    if (!header) return header.error();
    safetensors_content out;
    out.metadata = std::move(header->metadata);
    for (auto& info : header->tensors)
        out.tensors.push_back({std::move(info.name), std::move(info.dtype), std::move(info.shape),
                               file.subspan(info.offset, info.bytes)});
    return out;
}

} // namespace skein::train


// ======== skein/train/detail/manifest.ipp, continued
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

SKEIN_INLINE json shard_json(const shard_entry& shard) {
    return {{"name", shard.name}, {"bytes", shard.bytes}, {"crc32c", shard.crcs}};
}

SKEIN_INLINE result<shard_entry> parse_shard_entry(const json& value, std::uint64_t chunk_bytes) {
    shard_entry shard;
    auto name = json_string(value, "name");
    if (!name) return name.error();
    auto bytes = json_uint(value, "bytes");
    if (!bytes) return bytes.error();
    auto crcs = json_uints(value, "crc32c");
    if (!crcs) return crcs.error();

    shard.name = std::move(*name);
    shard.bytes = *bytes;
    if (shard.name.empty() || shard.name.front() == '.' ||
        shard.name.find('/') != std::string::npos)
        return error(errc::malformed,
                     fmt::format("shard name '{}' is not a plain file name", shard.name));
    const auto chunks = shard.bytes / chunk_bytes + (shard.bytes % chunk_bytes != 0 ? 1 : 0);
    if (crcs->size() != chunks)
        return error(errc::malformed, fmt::format("{}: {} checksums for {} chunks", shard.name,
                                                  crcs->size(), chunks));
    for (auto crc : *crcs) {
        if (crc > UINT32_MAX) return error(errc::malformed, "a checksum does not fit 32 bits");
        shard.crcs.push_back(static_cast<std::uint32_t>(crc));
    }
    return shard;
}

SKEIN_INLINE result<void> check_parts(const std::string& name, tensor_entry& tensor,
                                      std::size_t shards) {
    const auto bad = [&](std::string why) {
        return error(errc::malformed, fmt::format("tensor '{}': {}", name, why));
    };
    const auto total = rows_of(tensor.shape);
    std::set<std::size_t> seen;
    for (const auto& part : tensor.parts) {
        if (part.shard >= shards)
            return bad(fmt::format("shard {} of {} shards", part.shard, shards));
        if (!seen.insert(part.shard).second)
            return bad(fmt::format("two parts are in shard {}", part.shard));
        if (part.first_row < 0 || part.rows < 0 || part.rows > total ||
            part.first_row > total - part.rows || (part.rows == 0 && total > 0))
            return bad(fmt::format("{} rows from row {} in shard {}, the tensor has {}", part.rows,
                                   part.first_row, part.shard, total));
    }
    std::ranges::sort(tensor.parts, {}, &part_entry::first_row);
    std::int64_t end = 0;
    for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
        const auto& part = tensor.parts[i];
        if (part.first_row > end)
            return bad(fmt::format("rows [{}, {}) are in no shard", end, part.first_row));
        if (part.first_row < end || (part.rows == 0 && i > 0))
            return bad(fmt::format("rows [{}, {}) are in shards {} and {}", part.first_row,
                                   std::min(end, part.first_row + part.rows),
                                   tensor.parts[i - 1].shard, part.shard));
        end += part.rows;
    }
    if (tensor.parts.empty() || end < total)
        return bad(fmt::format("rows [{}, {}) are in no shard", end, total));
    return {};
}

SKEIN_INLINE json table_json(const tensor_table& tensors) {
    json out = json::object();
    for (const auto& [name, tensor] : tensors) {
        json parts = json::array();
        for (const auto& part : tensor.parts)
            parts.push_back(
                {{"shard", part.shard}, {"first_row", part.first_row}, {"rows", part.rows}});
        out[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"parts", std::move(parts)}};
    }
    return out;
}

/// A row, a number of rows or an extent: a whole number of 63 bits.
SKEIN_INLINE result<std::int64_t> json_row(const json& object, const std::string& key) {
    const auto value = json_uint(object, key);
    if (!value) return value.error();
    if (*value > INT64_MAX)
        return error(errc::malformed, fmt::format("'{}' does not fit 63 bits", key));
    return static_cast<std::int64_t>(*value);
}

SKEIN_INLINE result<tensor_entry> parse_tensor_entry(const std::string& name, const json& value,
                                                     std::size_t shards) {
    const auto bad = [&](const error& why) {
        return error(errc::malformed, fmt::format("tensor '{}': {}", name, why.text()));
    };
    const auto dtype = json_string(value, "dtype");
    if (!dtype) return bad(dtype.error());
    const auto shape = json_uints(value, "shape", 64);
    if (!shape) return bad(shape.error());

    tensor_entry tensor{.dtype = *dtype, .shape = {}, .parts = {}};
    for (const auto extent : *shape) {
        if (extent > INT64_MAX)
            return bad(error(errc::malformed, "an extent does not fit 63 bits"));
        tensor.shape.push_back(static_cast<std::int64_t>(extent));
    }
    if (const auto bytes = tensor_bytes(tensor.dtype, tensor.shape); !bytes)
        return bad(bytes.error());
    if (!value.contains("parts") || !value["parts"].is_array())
        return bad(error(errc::malformed, "'parts' is missing or is not an array"));
    for (const auto& item : value["parts"]) {
        const auto shard = json_uint(item, "shard");
        if (!shard) return bad(shard.error());
        const auto first = json_row(item, "first_row"), rows = json_row(item, "rows");
        for (const auto* field : {&first, &rows})
            if (!*field) return bad(field->error());
        tensor.parts.push_back({.shard = *shard, .first_row = *first, .rows = *rows});
    }
    if (auto done = check_parts(name, tensor, shards); !done) return done.error();
    return tensor;
}

SKEIN_INLINE result<tensor_table> parse_table(const json& manifest, std::size_t shards) {
    if (!manifest.contains("tensors") || !manifest["tensors"].is_object())
        return error(errc::malformed, "'tensors' is missing or is not an object");
    tensor_table out;
    for (const auto& [name, value] : manifest["tensors"].items()) {
        auto tensor = parse_tensor_entry(name, value, shards);
        if (!tensor) return tensor.error();
        out.emplace(name, std::move(*tensor));
    }
    return out;
}

inline constexpr json_limits manifest_json{.max_bytes = 256u << 20, .max_depth = 64};
SKEIN_INLINE std::string make_manifest_tail(std::string_view body) {
    return fmt::format(",\n  \"self\": \"{:08x}\"\n}}\n", crc32c(as_bytes(body)));
}

} // namespace detail

SKEIN_INLINE void chunk_checksums::add(byte_span part) {
    while (!part.empty()) {
        const auto take = std::min<std::uint64_t>(chunk_ - filled_, part.size());
        current_ = crc32c(part.first(take), current_);
        filled_ += take;
        bytes_ += take;
        part = part.subspan(take);
        if (filled_ == chunk_) close_chunk();
    }
}

SKEIN_INLINE std::vector<std::uint32_t> chunk_checksums::finish() {
    if (filled_ > 0) close_chunk();
    return std::move(crcs_);
}

SKEIN_INLINE void chunk_checksums::close_chunk() {
    crcs_.push_back(current_);
    current_ = 0;
    filled_ = 0;
}

SKEIN_INLINE std::string dump_manifest(const checkpoint_manifest& m) {
    json shards = json::array();
    for (auto& shard : m.shards) shards.push_back(detail::shard_json(shard));
    json metrics = json::object();
    for (auto& [name, value] : m.metrics)
        if (std::isfinite(value)) metrics[name] = value;
    const json whole = {{"format", checkpoint_manifest::format},
                        {"step", m.step},
                        {"world_size", m.world_size},
                        {"chunk_bytes", m.chunk_bytes},
                        {"shards", std::move(shards)},
                        {"tensors", detail::table_json(m.tensors)},
                        {"metrics", std::move(metrics)},
                        {"extra", parse_json(m.extra, detail::manifest_json).value()},
                        {"config_hash", m.config_hash},
                        {"skein", m.skein_version},
                        {"wall_time", m.wall_time}};
    std::string text = dump_json(whole, 2);
    text.resize(text.size() - 2); // "\n}"
    return text + detail::make_manifest_tail(text);
}

SKEIN_INLINE result<checkpoint_manifest> parse_manifest(byte_span bytes) {
    const auto text = as_text(bytes);
    const auto tail = detail::manifest_tail.size();
    if (text.size() < tail || text.substr(text.size() - tail) !=
                                  detail::make_manifest_tail(text.substr(0, text.size() - tail)))
        return error(errc::corrupt, "the manifest is cut off or its checksum does not fit");
    const auto parsed = parse_json(text, detail::manifest_json);
    if (!parsed) return parsed.error();
    const json& j = *parsed;

    const auto format = json_string(j, "format");
    if (!format) return format.error();
    checkpoint_manifest m;
    if (*format == checkpoint_manifest::format_1)
        m.version = 1;
    else if (*format != checkpoint_manifest::format)
        return error(errc::not_supported,
                     fmt::format("checkpoint format '{}' is not supported", *format))
            .with_hint(fmt::format("this build reads {} and {}", checkpoint_manifest::format_1,
                                   checkpoint_manifest::format));
    const auto step = json_uint(j, "step"), world = json_uint(j, "world_size");
    const auto chunk = json_uint(j, "chunk_bytes");
    for (auto* field : {&step, &world, &chunk})
        if (!*field) return field->error();
    const auto hash = json_string(j, "config_hash"), version = json_string(j, "skein");
    for (auto* field : {&hash, &version})
        if (!*field) return field->error();
    const auto wall = json_double(j, "wall_time");
    if (!wall) return wall.error();
    if (*chunk == 0 || *world == 0 || *world > 1'000'000)
        return error(errc::malformed, "chunk_bytes or world_size is out of range");
    if (!j.contains("shards") || !j["shards"].is_array())
        return error(errc::malformed, "'shards' is missing or is not an array");
    if (!j.contains("extra") || !j.contains("metrics") || !j["metrics"].is_object())
        return error(errc::malformed, "'extra' or 'metrics' is missing");

    m.step = *step;
    m.world_size = static_cast<int>(*world);
    m.chunk_bytes = *chunk;
    m.config_hash = *hash;
    m.skein_version = *version;
    m.wall_time = *wall;
    m.extra = dump_json(j["extra"]);
    for (auto& item : j["shards"]) {
        auto shard = detail::parse_shard_entry(item, m.chunk_bytes);
        if (!shard) return shard.error();
        m.shards.push_back(std::move(*shard));
    }
    if (m.version > 1) {
        auto tensors = detail::parse_table(j, m.shards.size());
        if (!tensors) return tensors.error();
        m.tensors = std::move(*tensors);
    }
    for (auto& [name, value] : j["metrics"].items())
        if (value.is_number()) m.metrics[name] = value.get<double>();
    return m;
}

} // namespace skein::train


// ======== skein/train/checkpoint.hpp, continued
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

/// All-gather of small blobs in rank order; throws when a rank is lost.
using exchange_function = std::function<std::vector<byte_buffer>(byte_span mine)>;

/// Who takes part in saving and loading. The default is a program alone.
struct checkpoint_world {
    int rank = 0;
    int size = 1;
    exchange_function exchange{}; ///< needed when size > 1; collective, called in the same order
};

/// Which checkpoints are kept, and how they are checked.
struct checkpoint_options {
    std::size_t keep_last = 2;       ///< newest checkpoints kept, at least 1
    std::size_t keep_best = 0;       ///< besides those, the best by `metric`
    std::string metric = "val_loss"; ///< name in checkpoint_state::metrics
    bool lower_is_better = true;
    std::size_t chunk_bytes = 1u << 20;             ///< bytes covered by one checksum
    std::function<void(const std::string&)> warn{}; ///< default: a warning in the log
};

/// A tensor to save, and what this rank has of it: all, or a run of rows along dimension 0. A
/// tensor of no dimensions is one row.
struct tensor_part {
    static constexpr std::int64_t whole = -1; ///< as `rows`: all of them

    std::string name{};
    std::string dtype{};               ///< as in safetensors: F32, BF16, ...
    std::vector<std::int64_t> shape{}; ///< of the whole tensor
    byte_span bytes{};                 ///< of the rows below
    std::int64_t first_row = 0;
    std::int64_t rows = whole;
    /// True: every rank has these bytes, all rows; one of them writes them. False: each rank writes
    /// its own rows; together those of all ranks are the tensor, each row once. A rank without
    /// rows, or whose rows another rank writes, gives rows = 0.
    bool everywhere = true;
};

/// What to save. Every rank gives the same list of tensors (names, types, shapes, `everywhere`) and
/// writes only its share. `step` is the number of finished optimizer steps.
struct checkpoint_state {
    std::uint64_t step = 0;
    std::vector<tensor_part> tensors{}; ///< bytes must stay unchanged during save()
    /// Sampler position, RNG, schedule...: the text of one JSON object; rank 0's is kept.
    std::string extra = "{}";
    std::map<std::string, double> metrics{}; ///< for keep_best and for people; rank 0's is kept
    std::string config_hash{}; ///< tells a resume with another model; rank 0's is kept
};

/// What a finished save tells.
struct saved_checkpoint {
    std::uint64_t step = 0;
    std::string path;
    std::uint64_t bytes = 0; ///< all shards
    double seconds = 0.0;
    /// False: it is whole, but the disk refused to make its name last; a power failure may bring
    /// back the checkpoint before it, which is kept. Told through options.warn, too.
    bool durable = true;
};

/// A verified checkpoint, open for reading on this rank.
class loaded_checkpoint {
public:
    [[nodiscard]] std::uint64_t step() const noexcept { return manifest_.step; }
    [[nodiscard]] const checkpoint_manifest& manifest() const noexcept { return manifest_; }
    [[nodiscard]] const std::string& extra() const noexcept { return manifest_.extra; }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }

    /// All tensors by name: type and shape of the whole, and which shard has which rows.
    [[nodiscard]] const tensor_table& tensors() const noexcept { return manifest_.tensors; }
    [[nodiscard]] bool contains(const std::string& name) const {
        return manifest_.tensors.contains(name);
    }

    /// Reads `rows` rows from `first_row` on into memory of exactly their size, from however many
    /// shards they lie in, and no other bytes. Type and shape must be the whole tensor's.
    ///   errors  not_found; mismatch, with both sides: "saved as F32 [50, 64], the model has F32
    ///           [50, 128]"; invalid_argument for rows that the tensor has not; corrupt or a disk
    ///           error, with the file
    void read(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
              std::int64_t first_row, std::int64_t rows, mut_byte_span into) const;
    /// All rows.
    void read(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
              mut_byte_span into) const;
    /// All rows, of whichever type and shape, into memory of exactly their size.
    void read(const std::string& name, mut_byte_span into) const;
    [[nodiscard]] byte_buffer read(const std::string& name) const;

private:
    friend class checkpointer;
    [[nodiscard]] const tensor_entry& entry(const std::string& name) const;
    void read_rows(const std::string& name, std::int64_t first_row, std::int64_t rows,
                   mut_byte_span into) const;

    std::string path_;
    checkpoint_manifest manifest_;
    std::map<std::string, std::vector<std::uint64_t>> offsets_; // of each part in its shard
    std::vector<std::unique_ptr<file>> shards_;
};

namespace detail {
struct verify_share;
struct open_failure;
struct checkpoint_listing;
/// The rank that writes each tensor that is everywhere: largest first, always to the rank with the
/// fewest bytes so far; -1 for the others. A pure function of names and sizes, so that nothing has
/// to be gathered.
[[nodiscard]] std::vector<int> deal_tensors(std::span<const tensor_part> tensors, int world_size);
} // namespace detail

/// Saves and loads the checkpoints of one run. All members are collective over the world: every
/// rank calls them in the same order, and all ranks see the same outcome.
class checkpointer {
public:
    /// dir: "<run>/checkpoints"; created by the first save. The disk must outlive this.
    checkpointer(disk& where, std::string dir, checkpoint_options options = {},
                 checkpoint_world world = {});

    /// Blocks until the checkpoint is durable or has failed; one that is whole but whose name the
    /// disk would not sync is told through options.warn, and the older ones stay. On failure throws
    /// the first failing rank's error on every rank (disk_full, io, permission_denied, mismatch,
    /// invalid_argument with the tensor and the rows that no rank or two ranks have), the
    /// unfinished folder is gone and older checkpoints are untouched. Older ones are removed only
    /// after success.
    saved_checkpoint save(const checkpoint_state& state);

    /// The newest checkpoint that verifies, the same on every rank, or nothing when there is none.
    /// Every byte is read and checked, each rank a share of the chunks. Broken ones before a whole
    /// one are reported through rank 0's options.warn and renamed to .broken.
    ///   errors  not_found when there are checkpoints and none is whole: nothing is changed then; a
    ///           disk error when the folder cannot be read, or by one rank alone
    [[nodiscard]] std::optional<loaded_checkpoint> load_latest();

    /// Steps that have a committed checkpoint (not verified), oldest first. Not collective.
    [[nodiscard]] std::vector<std::uint64_t> steps() const;

    /// The folder of a step's checkpoint, whether it is there or not.
    [[nodiscard]] std::string step_path(std::uint64_t step) const;

    /// Verifies one checkpoint folder, every byte of it: errc::corrupt, malformed or not_found with
    /// file and reason. Not collective.
    [[nodiscard]] static result<loaded_checkpoint> open(disk& where, const std::string& path,
                                                        bool verify_bytes = true);

    [[nodiscard]] const std::string& dir() const noexcept { return dir_; }

private:
    [[nodiscard]] result<shard_entry> write_shard(const checkpoint_state&,
                                                  const std::string& folder) const;
    /// True: the new name is durable, too.
    [[nodiscard]] result<bool> commit(const checkpoint_state&, const std::string& part,
                                      std::vector<shard_entry> shards) const;
    [[nodiscard]] result<bool> put_in_place(std::uint64_t step, const std::string& part) const;
    [[nodiscard]] result<tensor_table> tabulate(const checkpoint_state&, const std::string& part,
                                                const std::vector<shard_entry>& shards) const;
    [[nodiscard]] std::vector<shard_entry> write_all(const checkpoint_state&, std::string& part);
    [[nodiscard]] result<std::string> begin_part(std::uint64_t step) const;
    void clean_up() const;
    void retire() const;
    void warn(const std::string& line) const;
    [[nodiscard]] static std::optional<detail::open_failure> open_share(disk& where,
                                                                        const std::string& path,
                                                                        const detail::verify_share&,
                                                                        loaded_checkpoint& out);
    [[nodiscard]] detail::checkpoint_listing list_for_all() const;
    [[nodiscard]] std::optional<error> open_together(std::uint64_t step, loaded_checkpoint&) const;
    void set_aside(std::uint64_t step, const error& why, std::uint64_t next) const;

    disk& disk_;
    std::string dir_;
    checkpoint_options options_;
    checkpoint_world world_;
};

} // namespace skein::train


// ======== skein/train/detail/checkpoint.ipp
// Bodies of <skein/train/checkpoint.hpp>: saving. Loading is in checkpoint_load.ipp.
//
// Names in the checkpoint folder, and what they mean after a crash:
//     step-N               whole: renamed here only after everything in it was synced
//     step-N.part-<id>     a save that did not finish: removed at the next save or load
//     step-N.replaced      the older step-N while a new one takes its place: put back if step-N is
//                          missing, removed otherwise
//     step-N.trash         retired, its removal did not finish: removed
//     step-N.broken[-k]    refused by a load; kept for people to look at


// ======== skein/train/detail/checkpoint_load.ipp
// Bodies of <skein/train/checkpoint.hpp>: opening, verifying and reading.
//
// The ranks verify the chunks of a checkpoint together and must come to one verdict, that of a rank
// which goes through all of it alone: the first failure in its order (manifest; then of each shard
// size, chunks, header) counts, whoever met it.


// ======== skein/train/detail/checkpoint_table.ipp
// How the tensors of a checkpoint lie in its shards: who writes which rows, one shard as a stream,
// and the first row of each tensor of a shard, where PyTorch's HuggingFaceStorageReader looks for
// it. Used by the other files of <skein/train/checkpoint.hpp> alone.
//   source: pytorch, torch/distributed/checkpoint/hf_storage.py (the reader asks for every
//   tensor of a file)


// ======== skein/train/detail/checkpoint_parts.ipp
// The parts of a checkpoint: names of folders, and what the ranks tell each other. Used by the
// other files of <skein/train/checkpoint.hpp> alone.


#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::uint64_t max_manifest_bytes = manifest_json.max_bytes;

SKEIN_INLINE std::string step_name(std::uint64_t step) { return fmt::format("step-{:08}", step); }

/// The number in "step-00000120<suffix>" with exactly this suffix.
SKEIN_INLINE std::optional<std::uint64_t> step_of(std::string_view name,
                                                  std::string_view suffix = "") {
    if (!name.starts_with("step-") || !name.ends_with(suffix)) return std::nullopt;
    name.remove_prefix(5);
    name.remove_suffix(suffix.size());
    if (name.size() < 8 || name.size() > 19) return std::nullopt;
    std::uint64_t step = 0;
    for (char c : name) {
        if (c < '0' || c > '9') return std::nullopt;
        step = step * 10 + static_cast<std::uint64_t>(c - '0');
    }
    return step;
}

SKEIN_INLINE std::string base_name(const std::string& path) {
    return path.substr(path.find_last_of('/') + 1);
}

// What the ranks tell each other is one JSON object: {"ok": true, ...} or the parts of an error.
SKEIN_INLINE json outcome(const result<void>& done) {
    if (done) return {{"ok", true}};
    const auto& e = done.error();
    return {{"ok", false},        {"code", static_cast<int>(e.code())},
            {"text", e.text()},   {"where", e.where()},
            {"cause", e.cause()}, {"hint", e.hint()}};
}

SKEIN_INLINE error remote_outcome(const json& said, int rank, int world_size) {
    auto text = [&](const char* key) { return said.value(key, std::string()); };
    auto e = error(static_cast<errc>(said.value("code", static_cast<int>(errc::unknown))),
                   world_size > 1 ? fmt::format("rank {}: {}", rank, text("text")) : text("text"));
    e.with_where(text("where")).with_cause(text("cause")).with_hint(text("hint"));
    return e;
}

/// All-gather of what the ranks tell, failures too.
SKEIN_INLINE std::vector<json> gather_all(const checkpoint_world& world, const json& mine) {
    if (world.size == 1) return {mine};
    const auto text = dump_json(mine);
    std::vector<json> all;
    for (auto& blob : world.exchange(as_bytes(std::string_view(text)))) {
        auto parsed = parse_json(blob, {.max_bytes = 256u << 20, .max_depth = 64});
        if (!parsed || !parsed->is_object() || !parsed->contains("ok"))
            throw error(
                errc::malformed,
                fmt::format("rank {} sent a checkpoint message that cannot be read", all.size()));
        all.push_back(std::move(*parsed));
    }
    if (all.size() != static_cast<std::size_t>(world.size))
        throw error(errc::mismatch,
                    fmt::format("{} checkpoint messages from {} ranks", all.size(), world.size));
    return all;
}

/// All-gather of what the ranks tell; throws the first failed rank's error.
SKEIN_INLINE std::vector<json> gather(const checkpoint_world& world, const json& mine) {
    auto all = gather_all(world, mine);
    for (std::size_t r = 0; r < all.size(); ++r)
        if (!all[r]["ok"].get<bool>())
            throw remote_outcome(all[r], static_cast<int>(r), world.size);
    return all;
}

/// Puts `what` in front of the text and keeps the rest.
SKEIN_INLINE error with_context(std::string what, const error& e) {
    return error(e.code(), what + ": " + e.text())
        .with_where(e.where())
        .with_cause(e.cause())
        .with_hint(e.hint());
}

} // namespace skein::train::detail


// ======== skein/train/detail/checkpoint_table.ipp, continued
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>

namespace skein::train::detail {

inline constexpr const char* sharding_key = "DCP_SHARDING_INFO";

SKEIN_INLINE std::string shape_text(std::span<const std::int64_t> shape) {
    std::string out = "[";
    for (auto extent : shape) out += fmt::format("{}{}", out.size() > 1 ? ", " : "", extent);
    return out + "]";
}

SKEIN_INLINE std::vector<int> deal_tensors(std::span<const tensor_part> tensors, int world_size) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < tensors.size(); ++i)
        if (tensors[i].everywhere || rows_of(tensors[i].shape) == 0) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) {
        if (tensors[a].bytes.size() != tensors[b].bytes.size())
            return tensors[a].bytes.size() > tensors[b].bytes.size();
        return tensors[a].name < tensors[b].name;
    });
    std::vector<std::uint64_t> load(static_cast<std::size_t>(world_size), 0);
    std::vector<int> owner(tensors.size(), -1);
    for (auto i : order) {
        const auto least = std::min_element(load.begin(), load.end()) - load.begin();
        owner[i] = static_cast<int>(least);
        load[static_cast<std::size_t>(least)] +=
            tensors[i].bytes.size() + 1; // +1 deals out empty ones
    }
    return owner;
}

/// Equal on all ranks, or they are about to save different things.
SKEIN_INLINE std::uint64_t plan_hash(const checkpoint_state& state) {
    std::string text = fmt::format("{};", state.step);
    for (auto& t : state.tensors)
        text += fmt::format("{}|{}|{}|{};", t.name, t.dtype, shape_text(t.shape),
                            t.everywhere ? "everywhere" : "rows");
    const auto bytes = as_bytes(std::string_view(text));
    return std::uint64_t{crc32c(bytes)} << 32 | crc32c(bytes, 0x736b6569);
}

/// The tensor as a message names it.
SKEIN_INLINE error part_error(const std::string& name, const std::string& why) {
    return error(errc::invalid_argument, fmt::format("tensor '{}': {}", name, why));
}

/// The rows that this rank has, as a tensor of a shard: errc::invalid_argument when they, the bytes
/// and the shape do not agree.
SKEIN_INLINE result<tensor_view> view_of_part(const tensor_part& t) {
    const auto bytes = tensor_bytes(t.dtype, t.shape);
    if (!bytes) return part_error(t.name, bytes.error().text());
    const auto total = rows_of(t.shape);
    const auto rows = t.rows == tensor_part::whole ? total : t.rows;
    if (t.first_row < 0 || rows < 0 || rows > total || t.first_row > total - rows)
        return part_error(t.name, fmt::format("{} rows from row {} given, the shape is {}", rows,
                                              t.first_row, shape_text(t.shape)));
    if (t.everywhere && rows != total)
        return part_error(t.name, fmt::format("rows [{}, {}) of {} given, but it is everywhere",
                                              t.first_row, t.first_row + rows, total));
    const auto wanted =
        total == 0 ? 0
                   : *bytes / static_cast<std::uint64_t>(total) * static_cast<std::uint64_t>(rows);
    if (wanted != t.bytes.size())
        return part_error(t.name, fmt::format("{} bytes given, type and shape say {} for {} rows",
                                              t.bytes.size(), wanted, rows));
    tensor_view view{t.name, t.dtype, t.shape, t.bytes};
    if (!view.shape.empty()) view.shape.front() = rows;
    return view;
}

/// What one rank writes.
struct own_tensors {
    std::vector<tensor_view> views;
    std::string sharding; ///< {name: {"saved_offsets": [first row, 0, ...]}} for every one of them
};

SKEIN_INLINE result<own_tensors> own_part(std::span<const tensor_part> tensors,
                                          const checkpoint_world& world) {
    const auto owner = deal_tensors(tensors, world.size);
    own_tensors mine;
    json offsets = json::object();
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto& t = tensors[i];
        // A name that repeats would otherwise be seen only when both copies meet in one shard.
        if (!names.insert(t.name).second)
            return error(errc::invalid_argument,
                         fmt::format("two tensors are called '{}'", t.name));
        auto view = view_of_part(t);
        if (!view) return view.error();
        const bool has_rows = t.rows == tensor_part::whole || t.rows > 0;
        if (owner[i] == -1 ? !has_rows : owner[i] != world.rank) continue;
        json saved = json::array();
        for (std::size_t k = 0; k < t.shape.size(); ++k) saved.push_back(k == 0 ? t.first_row : 0);
        offsets[t.name] = {{"saved_offsets", std::move(saved)}};
        mine.views.push_back(std::move(*view));
    }
    mine.sharding = dump_json(offsets);
    return mine;
}

/// The first row of every tensor of a shard, as its own header tells.
SKEIN_INLINE result<std::map<std::string, std::int64_t>> first_rows(
    const safetensors_header& head) {
    const auto found = head.metadata.find(sharding_key);
    if (found == head.metadata.end())
        return error(errc::malformed, fmt::format("the header has no {}", sharding_key));
    const auto info = parse_json(std::string_view(found->second),
                                 {.max_bytes = max_safetensors_header, .max_depth = 8});
    if (!info) return info.error();
    std::map<std::string, std::int64_t> out;
    for (const auto& t : head.tensors) {
        const auto bad = [&] {
            return error(errc::malformed,
                         fmt::format("{} does not give the first row of tensor '{}' of shape {}",
                                     sharding_key, t.name, shape_text(t.shape)));
        };
        if (!info->is_object() || !info->contains(t.name)) return bad();
        const auto offsets = json_uints((*info)[t.name], "saved_offsets", 64);
        if (!offsets || offsets->size() != t.shape.size()) return bad();
        for (std::size_t k = 0; k < offsets->size(); ++k)
            if ((*offsets)[k] > (k == 0 ? std::uint64_t{INT64_MAX} : 0)) return bad();
        out.emplace(t.name, offsets->empty() ? 0 : static_cast<std::int64_t>(offsets->front()));
    }
    return out;
}

/// The table of a manifest of format 1: each tensor is whole in one shard.
SKEIN_INLINE result<void> add_whole_tensors(const safetensors_header& head, std::size_t shard,
                                            tensor_table& tensors) {
    for (const auto& t : head.tensors) {
        const auto part = part_entry{.shard = shard, .first_row = 0, .rows = rows_of(t.shape)};
        if (!tensors.emplace(t.name, tensor_entry{t.dtype, t.shape, {part}}).second)
            return error(errc::malformed, fmt::format("tensor '{}' is in two shards", t.name));
    }
    return {};
}

/// True when a shard's header has of a tensor what the manifest says.
SKEIN_INLINE bool fits(const tensor_info& t, std::int64_t first_row, const tensor_entry& whole,
                       const part_entry& part) {
    auto shape = whole.shape;
    if (!shape.empty()) shape.front() = part.rows;
    return t.dtype == whole.dtype && t.shape == shape && first_row == part.first_row;
}

/// Joins small writes, so that many small tensors do not become many system calls.
class shard_writer {
public:
    shard_writer(file& out, std::uint64_t chunk_bytes) : file_(out), sums_(chunk_bytes) {}

    result<void> operator()(byte_span part) {
        while (!part.empty()) {
            if (pending_.empty() && part.size() >= block) {
                if (auto done = put(part.first(block)); !done) return done;
                part = part.subspan(block);
                continue;
            }
            const auto take = std::min<std::size_t>(block - pending_.size(), part.size());
            append(pending_, part.first(take));
            part = part.subspan(take);
            if (pending_.size() == block)
                if (auto done = flush(); !done) return done;
        }
        return {};
    }
    result<void> flush() {
        auto done = put(pending_);
        pending_.clear();
        return done;
    }
    chunk_checksums& sums() noexcept { return sums_; }

private:
    static constexpr std::size_t block = 1u << 20;

    result<void> put(byte_span part) {
        if (part.empty()) return {};
        const auto offset = sums_.bytes();
        sums_.add(part);
        return file_.write_at(offset, part);
    }

    file& file_;
    chunk_checksums sums_;
    byte_buffer pending_;
};

SKEIN_INLINE result<safetensors_header> read_shard_head(file& from, std::uint64_t file_bytes) {
    byte_buffer head(std::min<std::uint64_t>(file_bytes, 8));
    auto got = from.read_at(0, head);
    if (!got) return got.error();
    const auto head_bytes = safetensors_head_bytes(head, file_bytes);
    if (!head_bytes) return head_bytes.error();
    head.resize(*head_bytes);
    got = from.read_at(0, head);
    if (!got) return got.error();
    head.resize(*got);
    return parse_safetensors_head(head, file_bytes);
}

} // namespace skein::train::detail


// ======== skein/train/detail/checkpoint_load.ipp, continued
#include <algorithm>
#include <compare>
#include <ranges>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

// ---- loaded_checkpoint --------------------------------------------------------------------------

SKEIN_INLINE const tensor_entry& loaded_checkpoint::entry(const std::string& name) const {
    auto it = manifest_.tensors.find(name);
    if (it == manifest_.tensors.end())
        throw error(errc::not_found, fmt::format("the checkpoint has no tensor '{}'", name))
            .with_where(path_)
            .with_hint("was it written by another model?");
    return it->second;
}

SKEIN_INLINE void loaded_checkpoint::read_rows(const std::string& name, std::int64_t first_row,
                                               std::int64_t rows, mut_byte_span into) const {
    const auto& t = entry(name);
    const auto total = detail::rows_of(t.shape);
    if (first_row < 0 || rows < 0 || rows > total || first_row > total - rows)
        throw error(errc::invalid_argument,
                    fmt::format("{} rows from row {} of tensor '{}' of shape {}", rows, first_row,
                                name, detail::shape_text(t.shape)))
            .with_where(path_);
    const auto bytes = tensor_bytes(t.dtype, t.shape).value();
    const auto row = total == 0 ? 0 : bytes / static_cast<std::uint64_t>(total);
    if (row * static_cast<std::uint64_t>(rows) != into.size())
        throw error(errc::mismatch,
                    fmt::format("tensor '{}' was saved as {} {} ({} bytes{}), the model has "
                                "{} bytes",
                                name, t.dtype, detail::shape_text(t.shape), row * rows,
                                rows == total ? "" : fmt::format(" in {} rows", rows), into.size()))
            .with_where(path_);
    if (into.empty()) return;
    const auto& offsets = offsets_.at(name);
    for (std::size_t i = 0; i < t.parts.size(); ++i) {
        const auto& part = t.parts[i];
        const auto begin = std::max(first_row, part.first_row);
        const auto end = std::min(first_row + rows, part.first_row + part.rows);
        if (begin >= end) continue;
        const auto piece = into.subspan(row * (begin - first_row), row * (end - begin));
        const auto got =
            shards_[part.shard]->read_at(offsets[i] + row * (begin - part.first_row), piece);
        if (!got) throw got.error();
        if (*got != piece.size())
            throw error(errc::corrupt, fmt::format("tensor '{}' is cut off after {} of {} bytes",
                                                   name, *got, piece.size()))
                .with_where(join_path(path_, manifest_.shards[part.shard].name));
    }
}

SKEIN_INLINE void loaded_checkpoint::read(const std::string& name, std::string_view dtype,
                                          std::span<const std::int64_t> shape,
                                          std::int64_t first_row, std::int64_t rows,
                                          mut_byte_span into) const {
    const auto& t = entry(name);
    if (t.dtype != dtype || !std::ranges::equal(t.shape, shape))
        throw error(errc::mismatch,
                    fmt::format("tensor '{}' was saved as {} {}, the model has {} {}", name,
                                t.dtype, detail::shape_text(t.shape), dtype,
                                detail::shape_text(shape)))
            .with_where(path_)
            .with_hint("start the run with the settings it was saved with");
    read_rows(name, first_row, rows, into);
}

SKEIN_INLINE void loaded_checkpoint::read(const std::string& name, std::string_view dtype,
                                          std::span<const std::int64_t> shape,
                                          mut_byte_span into) const {
    read(name, dtype, shape, 0, detail::rows_of(entry(name).shape), into);
}

SKEIN_INLINE void loaded_checkpoint::read(const std::string& name, mut_byte_span into) const {
    read_rows(name, 0, detail::rows_of(entry(name).shape), into);
}

SKEIN_INLINE byte_buffer loaded_checkpoint::read(const std::string& name) const {
    const auto& t = entry(name);
    byte_buffer bytes(tensor_bytes(t.dtype, t.shape).value());
    read(name, mut_byte_span(bytes));
    return bytes;
}

// ---- opening ------------------------------------------------------------------------------------

namespace detail {

/// The chunks that one rank verifies: those whose number, counted over all shards, is `index`
/// modulo `count`; none if count is 0.
struct verify_share {
    std::uint64_t index = 0, count = 1;
};

/// How far one came: the manifest is shard 0, shard i is i + 1; of a shard, what it is on disk is
/// stage 0, its chunk i is i + 1.
struct open_position {
    std::uint64_t shard = 0, stage = 0;
    static constexpr std::uint64_t header = UINT64_MAX;

    /// Found in bytes that this rank alone has read.
    [[nodiscard]] bool in_chunk() const noexcept { return stage != 0 && stage != header; }
    friend auto operator<=>(const open_position&, const open_position&) = default;
};

struct open_failure {
    error why;
    open_position at{};
};

/// The folder as rank 0 sees it.
struct checkpoint_listing {
    std::vector<std::uint64_t> steps; ///< newest first
    bool any_aside = false;           ///< there are .broken ones
};

/// Reads one chunk and compares it.
SKEIN_INLINE result<void> verify_chunk(file& from, const shard_entry& shard, std::uint64_t chunk,
                                       std::uint64_t chunk_bytes, byte_buffer& block) {
    const auto begin = chunk * chunk_bytes;
    const auto end = begin + std::min(chunk_bytes, shard.bytes - begin);
    std::uint32_t found = 0;
    for (auto at = begin; at < end;) {
        const auto want = std::min<std::uint64_t>(block.size(), end - at);
        const auto got = from.read_at(at, mut_byte_span(block).first(want));
        if (!got) return got.error();
        if (*got == 0) return error(errc::corrupt, "the file ended while it was read");
        found = crc32c(byte_span(block).first(*got), found);
        at += *got;
    }
    if (found == shard.crcs[chunk]) return {};
    return error(errc::corrupt,
                 fmt::format("chunk {} (bytes {} to {}) has checksum {:08x}, the manifest says "
                             "{:08x}",
                             chunk, begin, end, found, shard.crcs[chunk]));
}

/// A shard whose chunks of this share are verified.
struct opened_shard {
    std::unique_ptr<file> from;
    safetensors_header head;
};

/// Opens shard i, whose first chunk is number first_chunk of the checkpoint.
SKEIN_INLINE std::optional<open_failure> open_shard(disk& where, const std::string& path,
                                                    const checkpoint_manifest& manifest,
                                                    std::size_t i, const verify_share& share,
                                                    std::uint64_t first_chunk, opened_shard& out) {
    const auto& shard = manifest.shards[i];
    const auto refuse = [&](const error& why, std::uint64_t stage) {
        return open_failure{error(why).with_where(path), {i + 1, stage}};
    };
    auto opened = where.open(path, open_mode::read);
    if (!opened) return open_failure{opened.error(), {i + 1, 0}};
    const auto size = (*opened)->size();
    if (!size) return open_failure{size.error(), {i + 1, 0}};
    if (*size != shard.bytes)
        return refuse(error(errc::corrupt,
                            fmt::format("{} bytes, the manifest says {} ({})", *size, shard.bytes,
                                        *size < shard.bytes ? "truncated" : "too long")),
                      0);
    byte_buffer block(std::min<std::uint64_t>(1u << 20, manifest.chunk_bytes));
    for (std::uint64_t chunk = 0; chunk < shard.crcs.size() && share.count > 0; ++chunk)
        if ((first_chunk + chunk) % share.count == share.index)
            if (auto done = verify_chunk(**opened, shard, chunk, manifest.chunk_bytes, block);
                !done)
                return refuse(done.error(), chunk + 1);
    auto head = read_shard_head(**opened, shard.bytes);
    if (!head) return refuse(head.error(), open_position::header);
    out = {std::move(*opened), std::move(*head)};
    return std::nullopt;
}

/// Where the parts of shard i begin in it; the header must have what the manifest says, and nothing
/// else.
SKEIN_INLINE result<void> locate(const safetensors_header& head, std::size_t shard,
                                 checkpoint_manifest& manifest,
                                 std::map<std::string, std::vector<std::uint64_t>>& offsets) {
    std::map<std::string, std::int64_t> rows; // none in format 1: all begin with row 0
    if (manifest.version == 1) {
        if (auto done = add_whole_tensors(head, shard, manifest.tensors); !done) return done;
    } else {
        auto told = first_rows(head);
        if (!told) return told.error();
        rows = std::move(*told);
    }
    for (const auto& t : head.tensors) {
        const auto found = manifest.tensors.find(t.name);
        const auto bad = error(
            errc::malformed, fmt::format("tensor '{}' ({} {}) is not what the manifest says of it",
                                         t.name, t.dtype, shape_text(t.shape)));
        if (found == manifest.tensors.end()) return bad;
        const auto& whole = found->second;
        const auto part = std::ranges::find(whole.parts, shard, &part_entry::shard);
        const auto first_row = manifest.version == 1 ? 0 : rows.at(t.name);
        if (part == whole.parts.end() || !fits(t, first_row, whole, *part)) return bad;
        auto& at = offsets[t.name];
        at.resize(whole.parts.size());
        at[static_cast<std::size_t>(part - whole.parts.begin())] = t.offset;
    }
    return {};
}

/// Every part of the manifest was found in its shard.
SKEIN_INLINE result<void> all_located(
    const checkpoint_manifest& manifest,
    const std::map<std::string, std::vector<std::uint64_t>>& offsets) {
    for (const auto& [name, tensor] : manifest.tensors) {
        const auto at = offsets.find(name);
        for (std::size_t i = 0; i < tensor.parts.size(); ++i)
            if (at == offsets.end() || at->second[i] == 0)
                return error(errc::malformed,
                             fmt::format("tensor '{}' is not in {}", name,
                                         manifest.shards[tensor.parts[i].shard].name));
    }
    return {};
}

/// What all ranks conclude from what each of them met: nothing, or why the checkpoint is broken.
/// Throws what does not mean that it is broken: a newer format, a missing permission, a disk that
/// fails to answer, or files that rank 0 sees and another rank does not.
SKEIN_INLINE std::optional<error> verdict(const std::vector<json>& all) {
    const auto position = [&](std::size_t r) {
        const auto at = json_uints(all[r], "at", 2).value();
        return at.size() == 2 ? open_position{at[0], at[1]} : open_position{};
    };
    const auto size = static_cast<int>(all.size());
    std::optional<std::size_t> first, alone;
    for (std::size_t r = 0; r < all.size(); ++r) {
        if (all[r]["ok"].get<bool>()) continue;
        if (r != 0 && !position(r).in_chunk()) {
            if (!alone) alone = r;
        } else if (!first || position(r) < position(*first)) {
            first = r;
        }
    }
    if (!first && !alone) return std::nullopt;
    if (!first)
        throw remote_outcome(all[*alone], static_cast<int>(*alone), size)
            .with_hint("every rank must see the run folder: put it on a file system all hosts "
                       "share");
    auto why = remote_outcome(all[*first], 0, 1);
    if (why.code() == errc::corrupt || why.code() == errc::malformed ||
        why.code() == errc::not_found || why.code() == errc::too_large)
        return why;
    throw remote_outcome(all[*first], static_cast<int>(*first), size);
}

} // namespace detail

SKEIN_INLINE std::optional<detail::open_failure> checkpointer::open_share(
    disk& where, const std::string& path, const detail::verify_share& share,
    loaded_checkpoint& out) {
    const auto manifest_path = join_path(path, detail::manifest_name);
    const auto bytes = where.read_whole(manifest_path, detail::max_manifest_bytes);
    if (!bytes) return detail::open_failure{bytes.error()};
    auto manifest = parse_manifest(*bytes);
    const auto refuse = [&](const error& why) {
        return detail::open_failure{error(why).with_where(manifest_path)};
    };
    if (!manifest) return refuse(manifest.error());
    if (auto step = detail::step_of(detail::base_name(path)); step && *step != manifest->step)
        return refuse(
            error(errc::corrupt, fmt::format("the manifest is of step {}", manifest->step)));

    out.path_ = path;
    out.manifest_ = std::move(*manifest);
    const auto& shards = out.manifest_.shards;
    std::uint64_t first_chunk = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
        const auto shard_path = join_path(path, shards[i].name);
        const detail::open_position at{i + 1, detail::open_position::header};
        detail::opened_shard shard;
        if (auto failed =
                detail::open_shard(where, shard_path, out.manifest_, i, share, first_chunk, shard))
            return failed;
        if (auto done = detail::locate(shard.head, i, out.manifest_, out.offsets_); !done)
            return detail::open_failure{error(done.error()).with_where(shard_path), at};
        out.shards_.push_back(std::move(shard.from));
        first_chunk += shards[i].crcs.size();
    }
    if (auto done = detail::all_located(out.manifest_, out.offsets_); !done)
        return detail::open_failure{error(done.error()).with_where(manifest_path),
                                    {shards.size() + 1, 0}};
    return std::nullopt;
}

SKEIN_INLINE result<loaded_checkpoint> checkpointer::open(disk& where, const std::string& path,
                                                          bool verify_bytes) {
    loaded_checkpoint out;
    const detail::verify_share share{.index = 0, .count = verify_bytes ? 1u : 0u};
    if (auto failed = open_share(where, path, share, out)) return failed->why;
    return out;
}

// ---- the newest one that is whole ---------------------------------------------------------------

/// Puts a broken checkpoint out of the way, for people to look at.
SKEIN_INLINE void checkpointer::set_aside(std::uint64_t step, const error& why,
                                          std::uint64_t next) const {
    const auto path = step_path(step);
    auto aside = path + ".broken";
    for (int k = 2; disk_.status(aside).has_value(); ++k)
        aside = fmt::format("{}.broken-{}", path, k);
    auto moved = disk_.rename(path, aside);
    if (moved) moved = disk_.sync_dir(dir_);
    warn(fmt::format("checkpoint of step {} refused: {}; {}, trying step {}", step, why.what(),
                     moved ? "renamed to " + detail::base_name(aside)
                           : fmt::format("not renamed: {}", moved.error().what()),
                     next));
}

/// Collective; rank 0 looks, and clears away what earlier saves left.
SKEIN_INLINE detail::checkpoint_listing checkpointer::list_for_all() const {
    json mine = {{"ok", true}, {"steps", json::array()}, {"any_aside", false}};
    if (world_.rank == 0) {
        const auto there = disk_.status(dir_);
        const auto entries =
            there ? disk_.list(dir_) : result<std::vector<dir_entry>>(there.error());
        if (entries) {
            clean_up();
            mine["steps"] = steps();
            mine["any_aside"] = std::ranges::any_of(*entries, [](const dir_entry& entry) {
                return entry.name.starts_with("step-") &&
                       entry.name.find(".broken") != entry.name.npos;
            });
        } else if (there || there.error().code() != errc::not_found) {
            mine = detail::outcome(entries.error());
        }
    }
    const auto all = detail::gather(world_, mine);
    detail::checkpoint_listing seen;
    seen.steps = json_uints(all[0], "steps").value();
    std::ranges::reverse(seen.steps);
    seen.any_aside = all[0].value("any_aside", false);
    return seen;
}

/// Collective: each rank opens the checkpoint and verifies its share. The error, if it is broken,
/// is the same on every rank.
SKEIN_INLINE std::optional<error> checkpointer::open_together(std::uint64_t step,
                                                              loaded_checkpoint& out) const {
    const detail::verify_share share{.index = static_cast<std::uint64_t>(world_.rank),
                                     .count = static_cast<std::uint64_t>(world_.size)};
    json mine = {{"ok", true}};
    if (const auto failed = open_share(disk_, step_path(step), share, out)) {
        mine = detail::outcome(failed->why);
        mine["at"] = {failed->at.shard, failed->at.stage};
    }
    return detail::verdict(detail::gather_all(world_, mine));
}

namespace detail {

/// A checkpoint that may be whole, but the disk does not give it: to pass it over would lose steps
/// without need, so a person decides, and is told how.
///   older  the step of the one before it, if there is one
[[nodiscard]] SKEIN_INLINE error unreadable(const error& why, const std::string& path,
                                            std::optional<std::uint64_t> older) {
    if (why.code() != errc::io && why.code() != errc::permission_denied) return why;
    auto hint = std::string("resume when it can be read again");
    if (older)
        hint +=
            fmt::format(", or go on from step {} instead: mv {} {}.unreadable", *older, path, path);
    return error(why).with_hint(why.hint().empty() ? hint : why.hint() + "; " + hint);
}

} // namespace detail

SKEIN_INLINE std::optional<loaded_checkpoint> checkpointer::load_latest() {
    const auto seen = list_for_all();
    std::vector<std::pair<std::uint64_t, error>> refused;
    for (std::size_t at = 0; at < seen.steps.size(); ++at) {
        const auto step = seen.steps[at];
        loaded_checkpoint found;
        std::optional<error> broken;
        try {
            broken = open_together(step, found);
        } catch (const error& why) {
            throw detail::unreadable(why, step_path(step),
                                     at + 1 < seen.steps.size() ? std::optional(seen.steps[at + 1])
                                                                : std::nullopt);
        }
        if (broken) {
            refused.emplace_back(step, *broken);
            continue;
        }
        for (std::size_t i = 0; i < refused.size() && world_.rank == 0; ++i)
            set_aside(refused[i].first, refused[i].second,
                      i + 1 < refused.size() ? refused[i + 1].first : step);
        if (!refused.empty()) detail::gather(world_, {{"ok", true}}); // the names are settled
        return found;
    }
    // Starting over would cost what the run has reached: a person decides.
    if (refused.empty() && !seen.any_aside) return std::nullopt;
    throw error(errc::not_found, fmt::format("no checkpoint in {} is whole", dir_))
        .with_cause(refused.empty() ? "the broken ones were renamed to .broken before"
                                    : std::string(refused.front().second.what()))
        .with_hint("put a good copy back, or start anew under another run name");
}

} // namespace skein::train


// ======== skein/train/detail/checkpoint.ipp, continued
#include <algorithm>
#include <chrono>
#include <set>
#include <span>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE checkpointer::checkpointer(disk& where, std::string dir, checkpoint_options options,
                                        checkpoint_world world)
    : disk_(where), dir_(std::move(dir)), options_(std::move(options)), world_(std::move(world)) {
    SKEIN_CHECK(world_.size >= 1 && world_.rank >= 0 && world_.rank < world_.size,
                "rank {} of a world of {}", world_.rank, world_.size);
    SKEIN_CHECK(world_.size == 1 || world_.exchange,
                "a world of {} ranks needs an exchange function", world_.size);
    SKEIN_CHECK(options_.keep_last >= 1, "keep_last is 0: the newest checkpoint is always kept");
    SKEIN_CHECK(options_.chunk_bytes >= 1, "chunk_bytes is 0");
}

SKEIN_INLINE std::string checkpointer::step_path(std::uint64_t step) const {
    return join_path(dir_, detail::step_name(step));
}

SKEIN_INLINE void checkpointer::warn(const std::string& line) const {
    if (options_.warn) return options_.warn(line);
    logging::warn("checkpoint", line);
}

/// Agrees on what is saved and where (`part`, which rank 0 chooses), then every rank writes its
/// share.
SKEIN_INLINE std::vector<shard_entry> checkpointer::write_all(const checkpoint_state& state,
                                                              std::string& part) {
    json mine = {{"ok", true}, {"plan", detail::plan_hash(state)}};
    if (world_.rank == 0) {
        auto begun = begin_part(state.step);
        if (begun)
            mine["part"] = part = *begun;
        else
            mine = detail::outcome(begun.error());
    }
    auto all = detail::gather(world_, mine);
    for (std::size_t r = 0; r < all.size(); ++r)
        if (all[r].value("plan", std::uint64_t{0}) != all[0].value("plan", std::uint64_t{0}))
            throw error(
                errc::mismatch,
                fmt::format("rank {} wants to save other tensors or another step than rank 0", r));
    part = all[0].value("part", std::string());

    // Each rank tells size and checksums of its share.
    auto shard = write_shard(state, part);
    mine = shard ? json{{"ok", true}, {"shard", detail::shard_json(*shard)}}
                 : detail::outcome(shard.error());
    std::vector<shard_entry> shards;
    for (auto& said : detail::gather(world_, mine))
        shards.push_back(
            detail::parse_shard_entry(said.value("shard", json()), options_.chunk_bytes).value());
    return shards;
}

SKEIN_INLINE saved_checkpoint checkpointer::save(const checkpoint_state& state) {
    const auto started = system_clock().now();
    const bool leader = world_.rank == 0;
    std::string part;
    bool committed = false;
    try {
        auto shards = write_all(state, part);
        std::uint64_t bytes = 0;
        for (auto& shard : shards) bytes += shard.bytes;

        // Rank 0 commits; everybody learns whether it worked.
        result<bool> durable = false;
        if (leader) durable = commit(state, part, std::move(shards));
        committed = leader && durable.has_value();
        const auto all = detail::gather(world_, durable ? json{{"ok", true}, {"durable", *durable}}
                                                        : detail::outcome(durable.error()));
        if (committed && *durable) retire();

        const std::chrono::duration<double> took = system_clock().now() - started;
        return {state.step, step_path(state.step), bytes, took.count(),
                all[0].value("durable", true)};
    } catch (const error& failed) {
        if (committed) throw; // it is on disk; a rank was lost while it was told so
        if (leader && !part.empty())
            if (auto gone = disk_.remove_tree(part); !gone)
                warn(fmt::format("unfinished checkpoint not removed: {}", gone.error().what()));
        const auto kept = leader ? steps() : std::vector<std::uint64_t>();
        auto told = detail::with_context(
            fmt::format("checkpoint of step {} not written", state.step), failed);
        if (!kept.empty()) {
            auto hint = fmt::format("the checkpoint of step {} is kept", kept.back());
            told.with_hint(failed.hint().empty() ? hint : failed.hint() + "; " + hint);
        }
        throw told;
    }
}

SKEIN_INLINE result<std::string> checkpointer::begin_part(std::uint64_t step) const {
    if (steps().empty()) {
        if (auto made = disk_.make_dirs(dir_); !made) return made.error();
        // The first save, or the first after one that failed here: the folders above may be new
        // too, and each name must be durable.
        for (auto above = parent_path(dir_);; above = parent_path(above)) {
            const auto synced = disk_.sync_dir(above);
            if (!synced && synced.error().code() != errc::permission_denied) return synced.error();
            if (above == "." || above == "/") break;
        }
    }
    clean_up();
    auto part = fmt::format("{}.part-{:016x}", step_path(step), system_random().next());
    if (auto made = disk_.make_dirs(part); !made) return made.error();
    return part;
}

SKEIN_INLINE result<shard_entry> checkpointer::write_shard(const checkpoint_state& state,
                                                           const std::string& folder) const {
    const auto mine = detail::own_part(state.tensors, world_);
    if (!mine) return mine.error();
    const auto plan = plan_safetensors(mine->views, {{"format", "pt"},
                                                     {"writer", "skein " SKEIN_VERSION_STRING},
                                                     {detail::sharding_key, mine->sharding}});
    if (!plan) return plan.error();

    shard_entry shard;
    shard.name = fmt::format("shard-{}-of-{}.safetensors", world_.rank, world_.size);
    const auto path = join_path(folder, shard.name);
    auto opened = disk_.open(path, open_mode::create_new);
    if (!opened && opened.error().code() == errc::not_found && world_.rank != 0)
        return error(opened.error())
            .with_hint(
                "every rank must see the run folder: put it on a file system all hosts share");
    if (!opened) return opened.error();
    detail::shard_writer out(**opened, options_.chunk_bytes);
    if (auto done = write_safetensors(*plan, out); !done) return done.error();
    if (auto done = out.flush(); !done) return done.error();
    if (auto done = (*opened)->sync(); !done) return done.error();
    if (auto done = (*opened)->close(); !done) return done.error();
    shard.bytes = out.sums().bytes();
    shard.crcs = out.sums().finish();
    return shard;
}

/// What is where, from the headers of the shards as they are on disk.
SKEIN_INLINE result<tensor_table> checkpointer::tabulate(
    const checkpoint_state& state, const std::string& part,
    const std::vector<shard_entry>& shards) const {
    tensor_table table;
    for (auto& t : state.tensors) table.emplace(t.name, tensor_entry{t.dtype, t.shape, {}});
    for (std::size_t i = 0; i < shards.size(); ++i) {
        const auto path = join_path(part, shards[i].name);
        const auto seen = disk_.status(path);
        if (!seen || seen->bytes != shards[i].bytes)
            return error(errc::not_found,
                         fmt::format("{} was written by its rank but rank 0 cannot see it", path))
                .with_hint("put the run folder on a file system all hosts share");
        auto opened = disk_.open(path, open_mode::read);
        if (!opened) return opened.error();
        const auto head = detail::read_shard_head(**opened, shards[i].bytes);
        if (!head) return error(head.error()).with_where(path);
        const auto rows = detail::first_rows(*head);
        if (!rows) return error(rows.error()).with_where(path);
        for (auto& t : head->tensors) {
            const auto found = table.find(t.name);
            if (found == table.end())
                return error(errc::mismatch,
                             fmt::format("tensor '{}' is in a shard, but not saved", t.name))
                    .with_where(path);
            found->second.parts.push_back({i, rows->at(t.name), detail::rows_of(t.shape)});
        }
    }
    for (auto& [name, tensor] : table)
        if (auto done = detail::check_parts(name, tensor, shards.size()); !done)
            return error(errc::invalid_argument, done.error().text())
                .with_hint("the rows of all ranks together must be the tensor, each row once");
    return table;
}

SKEIN_INLINE result<bool> checkpointer::commit(const checkpoint_state& state,
                                               const std::string& part,
                                               std::vector<shard_entry> shards) const {
    auto tensors = tabulate(state, part, shards);
    if (!tensors) return tensors.error();
    checkpoint_manifest manifest;
    manifest.step = state.step;
    manifest.world_size = world_.size;
    manifest.chunk_bytes = options_.chunk_bytes;
    manifest.shards = std::move(shards);
    manifest.tensors = std::move(*tensors);
    manifest.metrics = state.metrics;
    manifest.extra = state.extra;
    manifest.config_hash = state.config_hash;
    manifest.wall_time = std::chrono::duration<double>(system_clock().wall()).count();
    const auto text = dump_manifest(manifest);
    if (text.size() > detail::max_manifest_bytes)
        return error(errc::too_large, fmt::format("a manifest of {} bytes is longer than {}",
                                                  text.size(), detail::max_manifest_bytes))
            .with_hint("raise chunk_bytes");
    if (auto done = disk_.write_whole(join_path(part, detail::manifest_name),
                                      as_bytes(std::string_view(text)));
        !done)
        return done.error();
    if (auto done = disk_.sync_dir(part); !done) return done.error();
    return put_in_place(state.step, part);
}

SKEIN_INLINE result<bool> checkpointer::put_in_place(std::uint64_t step,
                                                     const std::string& part) const {
    const auto final = step_path(step), aside = final + ".replaced";
    const bool replaces = disk_.status(final).has_value();
    if (replaces) {
        if (auto done = disk_.remove_tree(aside); !done) return done.error();
        if (auto done = disk_.rename(final, aside); !done) return done.error();
    }
    if (auto done = disk_.rename(part, final); !done) {
        if (replaces) (void)disk_.rename(aside, final);
        return done.error();
    }
    if (auto done = disk_.sync_dir(dir_); !done) {
        warn(
            fmt::format("checkpoint of step {} is written and whole, but {} could not be synced: a "
                        "power failure may bring back the state before it: {}",
                        step, dir_, done.error().what()));
        return false; // what it replaces or outdates stays, too
    }
    if (replaces)
        if (auto done = disk_.remove_tree(aside); !done)
            warn(fmt::format("the replaced checkpoint was not removed: {}", done.error().what()));
    return true;
}

SKEIN_INLINE void checkpointer::clean_up() const {
    const auto entries = disk_.list(dir_);
    if (!entries) return;
    std::set<std::string> names;
    for (auto& entry : *entries) names.insert(entry.name);
    auto must = [&](const result<void>& done) {
        if (!done) warn(fmt::format("cleaning {}: {}", dir_, done.error().what()));
    };
    for (auto& name : names) {
        const auto path = join_path(dir_, name);
        if (auto step = detail::step_of(name, ".replaced");
            step && !names.contains(detail::step_name(*step)))
            must(disk_.rename(path, step_path(*step)));
        else if (step || detail::step_of(name, ".trash") ||
                 (name.starts_with("step-") && name.find(".part-") != std::string::npos))
            must(disk_.remove_tree(path));
    }
}

SKEIN_INLINE std::vector<std::uint64_t> checkpointer::steps() const {
    std::vector<std::uint64_t> out;
    const auto entries = disk_.list(dir_);
    if (!entries) return out;
    for (auto& entry : *entries)
        if (auto step = detail::step_of(entry.name); step && entry.is_directory)
            out.push_back(*step);
    std::sort(out.begin(), out.end());
    return out;
}

SKEIN_INLINE void checkpointer::retire() const {
    const auto all = steps();
    std::set<std::uint64_t> keep;
    for (std::size_t i = 0; i < std::min(options_.keep_last, all.size()); ++i)
        keep.insert(all[all.size() - 1 - i]);
    if (options_.keep_best > 0) {
        std::vector<std::pair<double, std::uint64_t>> ranked; // best first; of equals the newer
        for (auto step : all) {
            const auto bytes = disk_.read_whole(join_path(step_path(step), detail::manifest_name),
                                                detail::max_manifest_bytes);
            const auto manifest =
                bytes ? parse_manifest(*bytes) : result<checkpoint_manifest>(bytes.error());
            if (!manifest) continue;
            if (auto it = manifest->metrics.find(options_.metric); it != manifest->metrics.end())
                ranked.emplace_back(options_.lower_is_better ? it->second : -it->second,
                                    UINT64_MAX - step);
        }
        std::sort(ranked.begin(), ranked.end());
        for (std::size_t i = 0; i < std::min(options_.keep_best, ranked.size()); ++i)
            keep.insert(UINT64_MAX - ranked[i].second);
    }
    for (auto step : all) {
        if (keep.contains(step)) continue;
        // Renamed first: a crash while the files go must not leave half a checkpoint under its
        // name.
        const auto trash = step_path(step) + ".trash";
        result<void> done = disk_.rename(step_path(step), trash);
        if (done) done = disk_.sync_dir(dir_);
        if (done) done = disk_.remove_tree(trash);
        if (!done)
            warn(fmt::format("old checkpoint of step {} not removed: {}", step,
                             done.error().what()));
    }
}

} // namespace skein::train

// ======== skein/train/context.hpp
// Where a training program runs: which rank of how many, and what connects the ranks.
//
// train::launch() makes it; user code only reads it. A program that is not launched (a test, a
// notebook, a plain binary) uses context::single(), and the same training code runs in one process.
//
//     int main(...) {
//         return skein::train::launch(config, [](skein::train::context& ctx) { ... });
//     }


#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace skein::spmd {
class rendezvous;
}
namespace skein::dist {
class comm_thread;
struct comm_options;
} // namespace skein::dist
namespace skein::train::detail {
class last_screen;
}

namespace skein::train {

/// The place of this process in the training world.
struct world_info {
    int rank = 0;
    int world_size = 1;
    int local_rank = 0;
    int local_size = 1;
    /// 0 for the first start; counts restarts after a failure. > 0 resumes from the last
    /// checkpoint.
    int attempt = 0;
    std::string host{};
    /// The same for all ranks and all attempts of one job; empty when nobody gave one.
    std::string job_id{};
    /// What started the ranks ("slurm", "openmpi", ...); empty: the program itself.
    std::string launcher{};
};

/// What a context remembers of a fit(): which folder it writes, and how it ended.
struct run_note {
    std::string name{}, path{}; ///< of the run's folder, absolute; empty: it writes none
    std::string best_metric{};  ///< as its configuration has it
    bool best_is_lowest = true;
    bool has_ended = false; ///< what follows is known
    std::uint64_t steps = 0;
    double seconds = 0.0; ///< of this start
    double loss = 0.0;    ///< of the last step
    double val_loss = std::numeric_limits<double>::quiet_NaN();
    std::uint64_t val_step = 0;
    std::string stopped_by{}; ///< "SIGTERM", or what a callback says; empty: it ended as planned
};

/// What a training function gets. Pointers are not owned and outlive the context.
class context {
public:
    /// One process, no communication.
    [[nodiscard]] static context single() { return context(); }

    /// One rank of a world. comm may be null only when world_size is 1.
    context(world_info where, spmd::rendezvous* world, dist::comm_thread* comm);

    [[nodiscard]] int rank() const noexcept { return where_.rank; }
    [[nodiscard]] int world_size() const noexcept { return where_.world_size; }
    [[nodiscard]] int local_rank() const noexcept { return where_.local_rank; }
    [[nodiscard]] int local_size() const noexcept { return where_.local_size; }
    [[nodiscard]] int attempt() const noexcept { return where_.attempt; }
    [[nodiscard]] const std::string& host() const noexcept { return where_.host; }
    [[nodiscard]] const std::string& job_id() const noexcept { return where_.job_id; }
    [[nodiscard]] const std::string& launcher() const noexcept { return where_.launcher; }
    [[nodiscard]] bool is_first() const noexcept { return where_.rank == 0; }

    /// Null in a single process.
    [[nodiscard]] spmd::rendezvous* world() const noexcept { return world_; }
    /// Null in a single process.
    [[nodiscard]] dist::comm_thread* comm() const noexcept { return comm_; }

    /// The same training goes on in another generation of its world: after ranks were lost, or came
    /// to meet again. session::rebind() follows, on every rank. What was given before has to live
    /// until it returns; control() of the old world is gone here. Job, attempt and stop flag stay.
    void rebind(world_info where, spmd::rendezvous* world, dist::comm_thread* comm);

    /// A further communicator of all ranks, for small exchanges that keep out of the way of
    /// comm()'s order and deadline (checkpoints). Null in a single process. The first call makes
    /// it, on all ranks alike. comm() itself where there is no rendezvous to make one with.
    ///   errors  those of dist::make_comm_thread
    [[nodiscard]] dist::comm_thread* control() const;
    /// Fails every exchange of comm() and control(), here and at the peers. From the thread that
    /// trains.
    void abort(const error& why) const noexcept;

    /// How comm() was made: groups of its ranks are made likewise. None: by the defaults.
    void use_options(const dist::comm_options& options);
    /// Those options, for a group that is made next; `what` it is goes into its name. The same on
    /// every rank when all make theirs in the same order.
    [[nodiscard]] dist::comm_options group_options(const std::string& what) const;

    /// launch() points this at a flag that a signal sets; training then saves and ends in order.
    ///   which  the signal, when there was one; asked after the flag was set
    void watch_stop_flag(const std::atomic<bool>* flag, std::function<int()> which = {}) noexcept {
        stop_ = flag;
        which_ = std::move(which);
    }
    [[nodiscard]] bool stop_requested() const noexcept {
        return stop_ != nullptr && stop_->load(std::memory_order_relaxed);
    }
    /// SIGINT or SIGTERM after a stop request by signal, else 0.
    [[nodiscard]] int stop_signal() const { return stop_requested() && which_ ? which_() : 0; }

    /// A session tells that a first step begins: what fails before is no accident that another try
    /// mends.
    void note_begun() const noexcept { begun_ = true; }
    [[nodiscard]] bool has_begun() const noexcept { return begun_; }
    /// A session tells which folder its run has, and then how it ended.
    void note_run(run_note what) const {
        run_ = std::move(what);
        if (watch_runs_) watch_runs_(*run_);
    }
    /// Of the last fit(); nothing before the first.
    [[nodiscard]] const std::optional<run_note>& last_run() const noexcept { return run_; }
    /// Called with each note.
    void watch_runs(std::function<void(const run_note&)> told) { watch_runs_ = std::move(told); }
    /// What fit() has to say at last is printed when the context ends, behind what the program says
    /// itself. Made by train/reporter.hpp; null: nothing.
    [[nodiscard]] std::shared_ptr<detail::last_screen>& screen() const noexcept { return screen_; }

private:
    context() = default;

    world_info where_;
    spmd::rendezvous* world_ = nullptr;
    dist::comm_thread* comm_ = nullptr;
    std::shared_ptr<const dist::comm_options> options_;
    mutable int groups_ = 0; // made so far
    mutable std::shared_ptr<dist::comm_thread> control_;
    const std::atomic<bool>* stop_ = nullptr;
    std::function<int()> which_;
    mutable bool begun_ = false;
    mutable std::optional<run_note> run_;
    std::function<void(const run_note&)> watch_runs_;
    mutable std::shared_ptr<detail::last_screen> screen_;
};

} // namespace skein::train


// ======== skein/train/detail/context.ipp
// Bodies of <skein/train/context.hpp>.


#include <algorithm>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

SKEIN_INLINE void check_place(const world_info& where, const dist::comm_thread* comm) {
    SKEIN_CHECK(where.world_size >= 1, "world size {} < 1", where.world_size);
    SKEIN_CHECK(where.rank >= 0 && where.rank < where.world_size, "rank {} of {}", where.rank,
                where.world_size);
    SKEIN_CHECK(comm != nullptr || where.world_size == 1,
                "a world of {} ranks needs a communicator", where.world_size);
}

} // namespace detail

SKEIN_INLINE context::context(world_info where, spmd::rendezvous* world, dist::comm_thread* comm)
    : where_(std::move(where)), world_(world), comm_(comm) {
    detail::check_place(where_, comm_);
}

SKEIN_INLINE void context::rebind(world_info where, spmd::rendezvous* world,
                                  dist::comm_thread* comm) {
    detail::check_place(where, comm);
    control_.reset();
    groups_ = 0; // who joins later counts from the same number
    world_ = world;
    comm_ = comm;
    where_ = std::move(where);
}

SKEIN_INLINE dist::comm_thread* context::control() const {
    if (world_ == nullptr) return comm_;
    if (!control_ && where_.world_size > 1) {
        auto options = group_options("control");
        // Words, not tensors; and who writes a checkpoint may keep the others waiting.
        options.shm.chunk_bytes = std::min(options.shm.chunk_bytes, options.shm.small_bytes);
        options.limits.deadline =
            std::max<duration>(options.limits.deadline, time_constants::lan().checkpoint_timeout);
        control_ = dist::make_comm_thread(*world_, options);
    }
    return control_.get();
}

SKEIN_INLINE void context::abort(const error& why) const noexcept {
    if (comm_ != nullptr) comm_->abort(why);
    if (control_) control_->abort(why);
}

SKEIN_INLINE void context::use_options(const dist::comm_options& options) {
    options_ = std::make_shared<const dist::comm_options>(options);
}

SKEIN_INLINE dist::comm_options context::group_options(const std::string& what) const {
    auto options = options_ ? *options_ : dist::comm_options{};
    // Of the runs in one world each has a communicator of its own name.
    const auto of = options.name == dist::comm_options{}.name ? what : options.name + "-" + what;
    options.name = fmt::format("{}-{}", of, groups_++);
    return options;
}

} // namespace skein::train

// ======== skein/train/run_config.hpp
// Everything about a training run that is not the model, the data or the optimizer.
//
// A plain struct: fill it by name, pass it to train::launch() and to the Trainer.
//
//     skein::train::run_config config{.name = "gpt",
//                                     .max_steps = 500,
//                                     .scaling = {.workers = 4},
//                                     .checkpoint = {.every = 100, .keep_best = {.k = 2}}};


// ======== skein/train/sampler.hpp
// Which samples make up the next batch: the same global order for any number of workers.
//
// Epoch e visits the N samples in the order of a permutation keyed by (seed, e), computed per
// index, so nothing of size N is stored and seeking is O(1). A global batch is the next B places of
// that order; the ranks take contiguous slices of it. State is (seed, epoch, cursor): a run saved
// by two workers goes on with one or three and sees exactly the samples it would have seen.
//
//     sampler order({.samples = text.size() / 128, .batch = 64, .seed = 1});
//     auto mine = order.next(rank, world_size);   // mine.ids
//
// The order is data::epoch_order's: pipelines and numbered data visit their samples alike.


// ======== skein/data/order.hpp
// The order in which an epoch visits its samples: a pure function of (samples, seed, epoch).
//
// Nothing of the size of the data set is stored, and any place is found in O(1): a rank, a helper
// on another host and a run that was resumed all compute the same sample for the same place.
//
//     auto order = data::epoch_order(50'000, seed, epoch);
//     std::uint64_t sample = order(place);
//
//   source: permutation of <skein/core/permutation.hpp>: Feistel with cycle walking (Black and
//           Rogaway 2002), keyed by splitmix64 of (seed, epoch)


#include <cstdint>
#include <utility>

namespace skein::data {

/// The key of an epoch's order: splitmix64 of (seed, epoch), so that neighbouring epochs get
/// unrelated keys. Fixed for ever: checkpoints rely on it.
[[nodiscard]] constexpr std::uint64_t epoch_key(std::uint64_t seed, std::uint64_t epoch) noexcept {
    std::uint64_t key = seed + (epoch + 1) * 0x9e3779b97f4a7c15ULL;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ULL;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebULL;
    return key ^ (key >> 31);
}

/// The shuffled order of one epoch: place in [0, samples) to sample in [0, samples).
///   samples  at least 1
[[nodiscard]] inline keyed_permutation epoch_order(std::uint64_t samples, std::uint64_t seed,
                                                   std::uint64_t epoch) {
    return keyed_permutation(samples, epoch_key(seed, epoch));
}

/// The [first, last) places of `count` that belong to rank of world_size: contiguous, differing by
/// at most one in length.
[[nodiscard]] constexpr std::pair<std::uint64_t, std::uint64_t> rank_range(
    std::uint64_t count, int rank, int world_size) noexcept {
    const auto n = static_cast<std::uint64_t>(world_size), r = static_cast<std::uint64_t>(rank);
    const auto base = count / n, extra = count % n;
    const auto first = r * base + (r < extra ? r : extra);
    return {first, first + base + (r < extra ? 1 : 0)};
}

} // namespace skein::data


// ======== skein/train/sampler.hpp, continued
#include <cstdint>
#include <vector>

namespace skein::train {

/// What to do with the last places of an epoch that do not fill a global batch.
enum class last_batch : std::uint8_t {
    drop,    ///< the epoch ends; every batch is full
    shorten, ///< one short batch; ranks may get unequal (even empty) slices
    carry,   ///< filled up with the first places of the next epoch; every batch is full
};

/// Where a sampler stands; goes into checkpoints.
struct sampler_state {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint64_t cursor = 0; ///< samples of this epoch already handed out, over all ranks

    friend bool operator==(const sampler_state&, const sampler_state&) = default;
};

/// The data set and the batches that a sampler deals.
struct sampler_options {
    std::uint64_t samples = 0; ///< N, samples in the data set
    std::uint64_t batch = 1;   ///< B, samples per global batch (all ranks, one step)
    std::uint64_t seed = 0;
    last_batch last = last_batch::drop;
};

/// One rank's part of one global batch.
struct batch_slice {
    std::uint64_t epoch = 0;
    std::uint64_t global_batch = 0; ///< samples of all ranks in this batch
    std::vector<std::uint64_t> ids; ///< this rank's sample numbers, each below N
};

/// The places of `count` that belong to a rank: see data::rank_range.
using data::rank_range;

/// Hands out global batches in order. Not thread-safe; every rank has its own, in step.
class sampler {
public:
    /// Throws errc::usage when there are no samples, or fewer than one batch or than workers.
    explicit sampler(sampler_options options, int world_size = 1);

    /// Whether these numbers can train: errc::usage with both numbers if not.
    [[nodiscard]] static result<void> check(const sampler_options& o, int world_size);

    /// The next global batch, cut for one rank; moves on to the next epoch by itself.
    [[nodiscard]] batch_slice next(int rank, int world_size);

    [[nodiscard]] const sampler_state& state() const noexcept { return state_; }
    [[nodiscard]] const sampler_options& options() const noexcept { return options_; }

    /// Batches of so many epochs from the beginning. With carry: whole batches, the rest is left
    /// out.
    [[nodiscard]] std::uint64_t batches_of(std::uint64_t epochs) const noexcept;

    /// Goes on from a saved place. Throws errc::mismatch when it lies behind the end of the data.
    void restore(const sampler_state& saved);

    /// Full global batches within an epoch (with last_batch::shorten, the short one counts too).
    [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept {
        const auto full = options_.samples / options_.batch;
        const bool rest = options_.samples % options_.batch != 0;
        return full + (rest && options_.last == last_batch::shorten ? 1 : 0);
    }

private:
    void begin_epoch();
    [[nodiscard]] keyed_permutation make_order() const;

    sampler_options options_;
    sampler_state state_;
    keyed_permutation order_;
};

} // namespace skein::train


// ======== skein/train/detail/sampler.ipp
// Bodies of <skein/train/sampler.hpp>.


#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE sampler::sampler(sampler_options options, int world_size)
    : options_(options), state_{.seed = options.seed}, order_(make_order()) {
    check(options_, world_size).value();
}

SKEIN_INLINE result<void> sampler::check(const sampler_options& o, int world_size) {
    const auto world = static_cast<std::uint64_t>(world_size > 0 ? world_size : 0);
    if (world == 0)
        return error(errc::usage, fmt::format("{} workers cannot train", world_size))
            .with_hint("give at least 1");
    if (o.samples == 0)
        return error(errc::usage, "the data set has no samples")
            .with_hint("is the text shorter than the context?");
    if (o.samples < world)
        return error(errc::usage, fmt::format("{} workers but only {} samples", world, o.samples))
            .with_hint(fmt::format("use at most {} workers or more data", o.samples));
    if (o.batch == 0) return error(errc::usage, "a global batch of 0 samples cannot train");
    if (o.batch < world)
        return error(errc::usage,
                     fmt::format("a global batch of {} samples cannot be dealt to {} workers",
                                 o.batch, world))
            .with_hint(fmt::format("use a batch of at least {}", world));
    if (o.last == last_batch::drop && o.samples < o.batch)
        return error(errc::usage, fmt::format("{} samples do not fill one global batch of {}",
                                              o.samples, o.batch))
            .with_hint("use a smaller batch or more data");
    return {};
}

SKEIN_INLINE batch_slice sampler::next(int rank, int world_size) {
    auto left = options_.samples - state_.cursor;
    const bool spent = options_.last == last_batch::drop ? left < options_.batch : left == 0;
    if (spent) {
        begin_epoch();
        left = options_.samples;
    }
    const bool carries = options_.last == last_batch::carry;
    const auto count = left < options_.batch && !carries ? left : options_.batch;
    const auto [first, last] = rank_range(count, rank, world_size);
    batch_slice slice{.epoch = state_.epoch, .global_batch = count, .ids = {}};
    slice.ids.reserve(last - first);
    for (std::uint64_t place = 0; place < count; ++place) {
        if (state_.cursor == options_.samples) begin_epoch(); // carried over
        if (place >= first && place < last) slice.ids.push_back(order_(state_.cursor));
        state_.cursor += 1;
    }
    return slice;
}

SKEIN_INLINE std::uint64_t sampler::batches_of(std::uint64_t epochs) const noexcept {
    if (options_.last != last_batch::carry) return epochs * batches_per_epoch();
    const auto whole = epochs * options_.samples / options_.batch;
    return whole > 0 ? whole : 1;
}

SKEIN_INLINE void sampler::begin_epoch() {
    state_.epoch += 1;
    state_.cursor = 0;
    order_ = make_order();
}

SKEIN_INLINE void sampler::restore(const sampler_state& saved) {
    if (saved.cursor > options_.samples)
        throw error(errc::mismatch,
                    fmt::format("saved position {} lies behind the {} samples of the data set",
                                saved.cursor, options_.samples))
            .with_hint("was the run started on other data?");
    state_ = saved;
    order_ = make_order();
}

SKEIN_INLINE keyed_permutation sampler::make_order() const {
    return data::epoch_order(options_.samples > 0 ? options_.samples : 1, state_.seed,
                             state_.epoch);
}

} // namespace skein::train


// ======== skein/train/run_config.hpp, continued
#include <chrono>
#include <cstdint>
#include <string>

namespace skein::train {

/// What to do with the checkpoints of an earlier run of the same name.
enum class resume_mode : std::uint8_t {
    fresh,  ///< start new; a restart after a failure within the same job still resumes
    latest, ///< go on from the newest valid checkpoint; start new if there is none
};

/// What a person sees.
enum class output_mode : std::uint8_t {
    automatic, ///< a live line on a terminal, plain lines elsewhere
    plain,     ///< plain lines
    quiet,     ///< errors only: no progress, notes or last screen
    json,      ///< one JSON object per line on stdout
};

/// How many processes, and how much of the machine each takes.
struct scaling_config {
    int workers = 1; ///< local processes, when no launcher has set up a world already
    int threads = 0; ///< compute threads per rank; 0 = 1, the reproducible choice
};

/// Which value of a metric is the best.
enum class metric_order : std::uint8_t { lowest, highest };

/// Which checkpoints are kept for their metrics, besides the newest.
struct keep_best_config {
    int k = 1;                       ///< so many; 0: none
    std::string metric = "val_loss"; ///< a number of an evaluation, or "loss": that of the step
    metric_order order = metric_order::lowest;
};

/// When a run saves itself, and what it keeps.
struct checkpoint_config {
    bool enabled = true;      ///< false writes none at all
    std::int64_t every = 200; ///< steps from one to the next, and one at the end; 0: only that
    int keep_last = 2;        ///< the newest that are kept; less than 1 counts as 1
    keep_best_config keep_best{};
    /// A checkpoint when the run is stopped early. false: none then, and what came after the last
    /// one is lost.
    bool on_stop = true;
};

/// What happens when a process is lost, and how long one waits for another.
struct failure_config {
    int max_failures = 3; ///< restarts from the last checkpoint before the job gives up
    time_span backoff = time_constants::lan().job_restart_first; ///< before the first; doubles
    time_span collective_timeout = time_constants::lan().collective_timeout; ///< between ranks
    /// From a stop request to the kill: a step, an evaluation and a checkpoint must fit in.
    time_span stop_grace = time_constants::lan().training_stop_grace;
};

/// Settings of one run. All counts are over all ranks together.
struct run_config {
    // Where its files go: <runs_dir>/<name>/
    std::string runs_dir = "runs";
    std::string name = "run";
    resume_mode resume = resume_mode::fresh;

    // How it trains
    std::int64_t max_steps = 1000; ///< optimizer steps of the whole run, not of this start
    std::int64_t epochs = 0;       ///< > 0: so many passes over the data, in place of max_steps
    /// What becomes of the samples at the end of an epoch that do not fill a global batch.
    last_batch last = last_batch::drop;
    std::int64_t global_batch =
        16;                        ///< samples per optimizer step, over all ranks and micro-batches
    std::int64_t accumulation = 1; ///< micro-batches per rank and step
    std::uint64_t seed = 1;  ///< data order, dropout; use it for the model's initial values too
    double clip = 1.0;       ///< maximum gradient norm; 0 turns clipping off
    double clip_value = 0.0; ///< then the largest size of each number of the gradient; 0 = off
    std::string precision = "float32"; ///< the only one here; others are settings of a strategy
    /// Bytes that parameters, gradients and optimizer states of the ranks of one host may take
    /// together; 0: what the system says. fit() refuses a strategy that needs more before it
    /// allocates.
    std::uint64_t memory_limit = 0;
    /// Global batches made ahead, on a thread of their own, while a step computes. 0: made when
    /// they are needed, on the thread that computes.
    int prefetch_batches = 1;

    // Evaluation: every so many steps and at the end; 0 = only at the end
    std::int64_t eval_every = 100;
    std::int64_t eval_samples = 0; ///< at most so many samples of the evaluation set; 0 = all
    std::int64_t eval_batch = 0;   ///< samples per rank and forward pass; 0 = as in training

    // Where it runs, what it saves, and what becomes of it when something is lost
    scaling_config scaling{};
    checkpoint_config checkpoint{};
    failure_config failure{};
    std::string communicator = "automatic"; ///< automatic, shm, ring or hierarchical

    // What it says
    output_mode output = output_mode::automatic;
    std::int64_t tokens_per_sample = 0; ///< for tokens/s; 0 counts samples/s
    bool write_files = true;            ///< metrics.csv, metrics.jsonl, event file, loss.svg
    /// How the program was called, when it has flags to go on with: command_line(). Empty: the hint
    /// how to go on shows the command line as it was.
    std::string command{};
    /// What those flags are called: the one that resumes, and those that give steps and the run's
    /// name. Empty for one that the program has not.
    std::string resume_flag = "--resume", steps_flag = "--steps", name_flag = "--run";
};

/// How this process was called, as one would type it again.
[[nodiscard]] std::string command_line();

/// Steps of the whole run over so many samples: max_steps, or what config.epochs come to. For
/// schedules.
///   errors  usage when so many samples cannot train
[[nodiscard]] std::uint64_t total_steps(const run_config& config, std::uint64_t samples);

/// Throws errc::usage with a hint when a value makes no sense, for a world of so many ranks.
void validate(const run_config& config, int world_size);

} // namespace skein::train

namespace skein {
using train::checkpoint_config;
using train::failure_config;
using train::keep_best_config;
using train::metric_order;
using train::run_config;
using train::scaling_config;
} // namespace skein


// ======== skein/train/detail/run_config.ipp
// Bodies of <skein/train/run_config.hpp>.


#include <algorithm>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE std::string command_line() {
    std::string out;
    for (const auto& word : own_arguments())
        out += (out.empty() ? "" : " ") + report::shell_word(word);
    return out;
}

SKEIN_INLINE std::uint64_t total_steps(const run_config& config, std::uint64_t samples) {
    if (config.epochs < 1) return static_cast<std::uint64_t>(config.max_steps);
    return sampler({.samples = samples,
                    .batch = static_cast<std::uint64_t>(config.global_batch),
                    .seed = config.seed,
                    .last = config.last})
        .batches_of(static_cast<std::uint64_t>(config.epochs));
}

SKEIN_INLINE void validate(const run_config& config, int world_size) {
    const auto refuse = [](std::string what, std::string hint) {
        throw error(errc::usage, std::move(what)).with_hint(std::move(hint));
    };
    if (config.scaling.workers < 1)
        refuse(fmt::format("scaling.workers = {}", config.scaling.workers),
               "at least 1 worker is needed");
    if (config.scaling.workers > 4096)
        refuse(fmt::format("scaling.workers = {}", config.scaling.workers),
               "at most 4096 run on one host");
    if (config.scaling.threads < 0 || config.scaling.threads > 1024)
        refuse(fmt::format("scaling.threads = {}", config.scaling.threads),
               "use 0 (one) to 1024 per worker");
    if (config.failure.max_failures < 0)
        refuse(fmt::format("failure.max_failures = {}", config.failure.max_failures),
               "restarts before the job gives up: use 0 or more");
    if (config.checkpoint.every < 0)
        refuse(fmt::format("checkpoint.every = {}", config.checkpoint.every),
               "use a number of steps, or 0 for a checkpoint at the end only");
    if (config.epochs < 0)
        refuse(fmt::format("{} epochs", config.epochs), "use 1 or more, or 0 for max_steps");
    if (config.prefetch_batches < 0 || config.prefetch_batches > 1024)
        refuse(fmt::format("{} batches made ahead", config.prefetch_batches),
               "use 0 (none) to 1024; each takes the memory of a batch");
    if (config.epochs == 0 && config.max_steps < 1)
        refuse(fmt::format("{} steps", config.max_steps), "at least 1 step is needed");
    if (config.accumulation < 1)
        refuse(fmt::format("accumulation of {}", config.accumulation), "use 1 or more");
    if (config.global_batch < 1)
        refuse(fmt::format("a batch of {} samples", config.global_batch), "use 1 or more");
    if (config.global_batch < world_size * config.accumulation)
        refuse(
            fmt::format("a batch of {} samples cannot feed {} workers with {} micro-batches each",
                        config.global_batch, world_size, config.accumulation),
            "use fewer workers or a larger batch");
    if (!(config.clip >= 0))
        refuse(fmt::format("clip of {}", config.clip), "use 0 (off) or a positive norm");
    if (!(config.clip_value >= 0))
        refuse(fmt::format("clip_value of {}", config.clip_value),
               "use 0 (off) or a positive size");
    if (config.precision != "float32")
        throw error(errc::not_supported,
                    fmt::format("not supported: precision {}", config.precision))
            .with_hint("there is float32; what a model computes in is a setting of the strategy: "
                       "precision<bf16> or precision<f16>, as in FSDP<auto_wrap<Block>, "
                       "precision<bf16>>");
    const bool has_control = std::ranges::any_of(
        config.name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (config.name.empty() || config.name.find('/') != std::string::npos ||
        config.name[0] == '.' || config.name.size() > 200 || has_control)
        refuse(fmt::format("run name '{}'", has_control ? "..." : config.name),
               "use a plain folder name of up to 200 characters");
    if (config.runs_dir.empty()) refuse("no folder for runs", "use . for the current one");
    if (config.resume == resume_mode::latest && !config.checkpoint.enabled)
        refuse("resuming without checkpoints", "they are read and go on being written: leave "
                                               "resume or checkpoint.enabled = false out");
}

} // namespace skein::train


// ======== skein/train/collective.hpp, continued
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

namespace detail {
/// Errors that a failure elsewhere causes here.
[[nodiscard]] constexpr bool may_be_echo(errc code) noexcept {
    return code == errc::aborted || code == errc::peer_lost || code == errc::reset ||
           code == errc::closed || code == errc::timeout;
}
} // namespace detail

/// In place over all ranks.
void all_reduce(const context& ctx, std::span<double> values, dist::reduce_op op);

/// The bytes of every rank, in rank order.
[[nodiscard]] std::vector<byte_buffer> gather_bytes(const context& ctx, byte_span mine);
[[nodiscard]] std::vector<byte_buffer> gather_bytes(dist::comm_thread& comm, byte_span mine);

/// Rank 0's text on every rank.
[[nodiscard]] std::string from_first(const context& ctx, const std::string& text);

/// Throws errc::mismatch on every rank, naming the first rank that differs from rank 0.
void require_same(const context& ctx, std::uint64_t hash, std::string_view what);

/// What every rank must have alike of its configuration; model, optimizer and data are compared
/// with it when training begins.
[[nodiscard]] std::vector<spmd::setting> settings_of(const run_config& config);

/// Throws errc::mismatch on every rank, with the settings that differ and both values.
void require_same(const context& ctx, const std::vector<spmd::setting>& mine);

/// The metrics of all ranks, reduced by kind; the same values on every rank.
///   control  travels with them and is no metric: becomes the largest of all ranks, number by
///            number
[[nodiscard]] std::vector<report::metric_value> merge(const context& ctx,
                                                      const report::metric_set& mine,
                                                      std::span<double> control = {});

/// Rows of numbers whose names a rank may not know: one without samples reports nothing, one may
/// report under a condition of its own. All ranks learn each name and kind the first time that some
/// rank reports it, with one more exchange; after that a row costs what merge() costs.
class shared_names {
public:
    /// The metrics of all ranks, reduced by kind; `own`, the same names on every rank, come first.
    /// A reported name is in the row when some rank reported it, and counts for those that did.
    ///   control  as for merge()
    ///   errors   mismatch, on every rank, when two ranks report a name by different kinds
    [[nodiscard]] std::vector<report::metric_value> merge(const context& ctx,
                                                          const report::metric_set& own,
                                                          const report::metric_set& reported,
                                                          std::span<double> control = {});
    /// In another world: its ranks learn anew.
    void forget() noexcept { known_.clear(); }

private:
    void learn(const context& ctx, const report::metric_set& reported);

    report::metric_set known_; // the same on all ranks; counts nothing
};

/// For the checkpointer: its exchange over this context's control group, whose deadline is at least
/// 30 minutes, since between exchanges ranks read, verify and sync whole checkpoints. Dead ranks
/// are noticed without it. The context must outlive it; made by all ranks alike.
[[nodiscard]] checkpoint_world make_checkpoint_world(const context& ctx);

} // namespace skein::train


// ======== skein/train/detail/collective.ipp
// Bodies of <skein/train/collective.hpp>.


#include <algorithm>
#include <cstring>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE void all_reduce(const context& ctx, std::span<double> values, dist::reduce_op op) {
    if (ctx.world_size() == 1 || values.empty()) return;
    ctx.comm()->all_reduce(dist::view_of(values), op).wait();
}

SKEIN_INLINE std::vector<byte_buffer> gather_bytes(const context& ctx, byte_span mine) {
    if (ctx.world_size() == 1) return {byte_buffer(mine.begin(), mine.end())};
    return gather_bytes(*ctx.comm(), mine);
}

SKEIN_INLINE std::vector<byte_buffer> gather_bytes(dist::comm_thread& comm, byte_span mine) {
    const auto world = static_cast<std::size_t>(comm.world_size());
    std::vector<byte_buffer> all(world);
    auto my_size = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> sizes(world);
    comm.all_gather(dist::view_of(std::span(&my_size, 1)), dist::view_of(std::span(sizes))).wait();

    std::vector<std::size_t> counts(sizes.begin(), sizes.end());
    std::size_t total = 0;
    for (auto n : counts) total += n;
    if (total == 0) return all;
    byte_buffer joined(total);
    comm.all_gather_v(dist::view_of(mine), dist::view_of(std::span(joined)), counts).wait();
    const auto* from = joined.data();
    for (std::size_t r = 0; r < world; ++r) {
        all[r].assign(from, from + counts[r]);
        from += counts[r];
    }
    return all;
}

SKEIN_INLINE std::string from_first(const context& ctx, const std::string& text) {
    const auto all = gather_bytes(ctx, ctx.is_first() ? as_bytes(text) : byte_span{});
    return std::string(as_text(all[0]));
}

SKEIN_INLINE void require_same(const context& ctx, std::uint64_t hash, std::string_view what) {
    byte_buffer mine(sizeof hash);
    std::memcpy(mine.data(), &hash, sizeof hash);
    const auto all = gather_bytes(ctx, mine);
    for (std::size_t r = 1; r < all.size(); ++r)
        if (all[r] != all[0])
            throw error(errc::mismatch,
                        fmt::format("{} of rank {} differs from that of rank 0", what, r))
                .with_hint("build it from the same options on every rank");
}

SKEIN_INLINE std::vector<spmd::setting> settings_of(const run_config& c) {
    const auto text = [](const auto& value) { return fmt::format("{}", value); };
    const char* const lasts[] = {"drop", "shorten", "carry"};
    const auto& saves = c.checkpoint;
    return {{"max_steps", text(c.max_steps)},
            {"epochs", text(c.epochs)},
            {"last_batch", lasts[static_cast<int>(c.last)]},
            {"global_batch", text(c.global_batch)},
            {"accumulation", text(c.accumulation)},
            {"seed", text(c.seed)},
            {"clip", text(c.clip)},
            {"clip_value", text(c.clip_value)},
            {"scaling.threads", text(std::max(c.scaling.threads, 1))},
            {"precision", c.precision},
            {"eval_every", text(c.eval_every)},
            {"eval_samples", text(c.eval_samples)},
            {"eval_batch", text(c.eval_batch)},
            {"checkpoint.enabled", text(saves.enabled)},
            {"checkpoint.every", text(saves.every)},
            {"checkpoint.keep_last", text(saves.keep_last)},
            {"checkpoint.keep_best.k", text(saves.keep_best.k)},
            {"checkpoint.keep_best.metric", saves.keep_best.metric},
            {"checkpoint.keep_best.order",
             saves.keep_best.order == metric_order::lowest ? "lowest" : "highest"},
            {"checkpoint.on_stop", text(saves.on_stop)},
            {"resume", text(c.resume == resume_mode::latest)},
            {"communicator", c.communicator}};
}

SKEIN_INLINE void require_same(const context& ctx, const std::vector<spmd::setting>& mine) {
    if (ctx.world_size() == 1) return;
    byte_buffer hash(sizeof(std::uint64_t));
    store_le<std::uint64_t>(hash.data(), spmd::hash_of(mine));
    const auto hashes = gather_bytes(ctx, hash);
    if (std::ranges::all_of(hashes, [&](const auto& other) { return other == hashes[0]; })) return;
    // All ranks see that: now the values, to name what differs.
    const auto all = gather_bytes(ctx, wire::encode(mine));
    const auto first = wire::decode<std::vector<spmd::setting>>(all[0]).value();
    for (std::size_t r = 1; r < all.size(); ++r) {
        const auto other = wire::decode<std::vector<spmd::setting>>(all[r]).value();
        if (const auto why = spmd::difference(static_cast<int>(r), other, 0, first)) throw *why;
    }
}

SKEIN_INLINE std::vector<report::metric_value> merge(const context& ctx,
                                                     const report::metric_set& mine,
                                                     std::span<double> control) {
    if (ctx.world_size() == 1) return mine.values();
    auto packed = mine.pack(ctx.rank());
    const auto own = packed.maxima.size();
    packed.maxima.insert(packed.maxima.end(), control.begin(), control.end());
    auto sums = ctx.comm()->all_reduce(dist::view_of(std::span(packed.sums)), dist::reduce_op::sum);
    auto maxima =
        ctx.comm()->all_reduce(dist::view_of(std::span(packed.maxima)), dist::reduce_op::max);
    try {
        sums.wait();
        maxima.wait();
    } catch (...) {
        ctx.comm()->drain(); // both work on `packed`
        throw;
    }
    std::copy(packed.maxima.begin() + static_cast<std::ptrdiff_t>(own), packed.maxima.end(),
              control.begin());
    packed.maxima.resize(own);
    auto lasts = mine.lasts_of(packed, ctx.rank());
    all_reduce(ctx, lasts, dist::reduce_op::sum);
    mine.put_lasts(packed, lasts);
    return mine.unpack(packed).value();
}

SKEIN_INLINE std::vector<report::metric_value> shared_names::merge(
    const context& ctx, const report::metric_set& own, const report::metric_set& reported,
    std::span<double> control) {
    auto row = own;
    if (ctx.world_size() == 1) return row.append(reported).values();
    const bool knows = known_.covers(reported);
    // What is new to somebody is not in this exchange: all see that there is, and make another one.
    std::vector<double> with_news(control.begin(), control.end());
    with_news.push_back(knows ? 0.0 : 1.0);
    row.append(known_);
    if (knows) row.append(reported);
    auto merged = train::merge(ctx, row, with_news);
    std::copy_n(with_news.begin(), control.size(), control.begin());
    if (with_news.back() <= 0) return merged;
    learn(ctx, reported);
    row = own;
    return train::merge(ctx, row.append(known_).append(reported));
}

SKEIN_INLINE void shared_names::learn(const context& ctx, const report::metric_set& reported) {
    std::vector<std::string> layouts;
    for (const auto& each : gather_bytes(ctx, as_bytes(reported.layout())))
        layouts.emplace_back(as_text(each));
    auto all = report::metric_set::join(layouts);
    if (!all) throw all.error();
    known_ = std::move(all->know(known_)); // those that nobody reports this time, too
}

SKEIN_INLINE checkpoint_world make_checkpoint_world(const context& ctx) {
    (void)ctx.control(); // made now, by all ranks alike
    return checkpoint_world{
        .rank = ctx.rank(), .size = ctx.world_size(), .exchange = [&ctx](byte_span mine) {
            auto* const control = ctx.control();
            return control != nullptr ? gather_bytes(*control, mine) : gather_bytes(ctx, mine);
        }};
}

} // namespace skein::train

// ======== skein/train/shard_layout.hpp
// Where the parameters of a unit lie in a flat buffer, and where the buffer is cut between ranks.
//
// A unit is what travels together: a transformer block, a bucket, or what is left at the root. Its
// parameters lie one behind the other, each at a multiple of 16 elements. A cut lies on a row of a
// parameter and on 16 elements, so that every rank's piece of every parameter is a rectangle of
// whole rows, and kernels see the same alignment however the unit is cut. Pieces are as even as
// rows allow and never padded.
//
//     const auto cuts = cut_unit(parameters, {0, size}, 4);   // four ranges, adjacent, in order


#include <cstdint>
#include <span>
#include <vector>

namespace skein::train {

/// Elements [begin, end) of a flat buffer.
struct flat_range {
    std::int64_t begin = 0;
    std::int64_t end = 0;

    [[nodiscard]] std::int64_t size() const noexcept { return end - begin; }
    [[nodiscard]] bool empty() const noexcept { return begin == end; }
    friend bool operator==(flat_range, flat_range) = default;
};

/// What two ranges have in common; empty at `a.begin` when that is nothing.
[[nodiscard]] flat_range overlap(flat_range a, flat_range b) noexcept;

/// Every parameter begins at a multiple of so many elements: 64 bytes of float32.
inline constexpr std::int64_t flat_alignment = 16;

/// `count` elements, up to where the next parameter may begin.
[[nodiscard]] constexpr std::int64_t padded_count(std::int64_t count) noexcept {
    return (count + flat_alignment - 1) / flat_alignment * flat_alignment;
}

/// One parameter's place in a flat buffer.
struct placed_parameter {
    std::int64_t offset = 0; ///< a multiple of flat_alignment
    std::int64_t count = 0;  ///< elements, without padding
    std::int64_t row = 1;    ///< elements that one index of dimension 0 spans; at least 1
};

/// The pieces of `shards` ranks: adjacent, in rank order, together `unit`. A piece may be empty.
///   parameters  of the unit, in order of offset; the first begins where the unit does
///   unit        ends on a multiple of flat_alignment
[[nodiscard]] std::vector<flat_range> cut_unit(std::span<const placed_parameter> parameters,
                                               flat_range unit, int shards);

} // namespace skein::train


// ======== skein/train/detail/shard_layout.ipp
// Bodies of <skein/train/shard_layout.hpp>.


#include <algorithm>
#include <numeric>

namespace skein::train {

SKEIN_INLINE flat_range overlap(flat_range a, flat_range b) noexcept {
    const auto begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
    return begin < end ? flat_range{begin, end} : flat_range{a.begin, a.begin};
}

namespace detail {

/// The allowed cut nearest to `wanted`, which lies inside the parameter; of two the lower.
SKEIN_INLINE std::int64_t nearest_cut(const placed_parameter& p, std::int64_t wanted) {
    const auto end = p.offset + padded_count(p.count);
    // Rows whose first element is a multiple of the alignment come every `step` elements.
    const auto step = p.row / std::gcd(p.row, flat_alignment) * flat_alignment;
    const auto below = p.offset + (wanted - p.offset) / step * step;
    const auto above = below + step >= p.offset + p.count ? end : below + step;
    return wanted - below <= above - wanted ? below : above;
}

} // namespace detail

SKEIN_INLINE std::vector<flat_range> cut_unit(std::span<const placed_parameter> parameters,
                                              flat_range unit, int shards) {
    SKEIN_CHECK(shards >= 1, "a unit cut into {} pieces", shards);
    std::vector<flat_range> pieces;
    auto at = unit.begin;
    for (int r = 1; r <= shards; ++r) {
        const auto wanted = unit.begin + unit.size() * r / shards;
        auto cut = unit.end;
        if (r < shards) {
            const auto inside = std::ranges::find_if(parameters, [&](const placed_parameter& p) {
                return wanted < p.offset + padded_count(p.count);
            });
            if (inside != parameters.end()) cut = detail::nearest_cut(*inside, wanted);
        }
        cut = std::max(cut, at);
        pieces.push_back({at, cut});
        at = cut;
    }
    return pieces;
}

} // namespace skein::train

// ======== skein/train/unit.hpp
// The mark of a block whose parameters are gathered when its forward begins and dropped when it has
// ended.
//
//     struct BlockImpl : torch::nn::Module { ...; torch::Tensor forward(torch::Tensor x_BTD); };
//     TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>);      // nothing else in the model changes
//
// unit<M> is an M whose forward, of exactly M's signature, asks one pointer before and after;
// Sequential, AnyModule and direct calls of forward() take it as they take M. C++ modules have no
// hooks, so a type is the only place where a strategy can stand between a block and its caller.
// Under strategies that keep the parameters where they are the pointer is null.


#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::train {

class activation_store;

/// What a strategy does around the forward pass of a unit. On the thread that calls forward().
class unit_hooks {
public:
    virtual ~unit_hooks();
    /// Returns when the unit's parameters have their values.
    virtual void before_forward(std::size_t unit) = 0;
    /// outputs: every tensor that forward() returned.
    virtual void after_forward(std::size_t unit, std::span<const at::Tensor> outputs) = 0;
    /// Returns when they have their values again, until their gradients are final.
    virtual void before_backward(std::size_t unit) = 0;
};

/// A parameter of which only a part was kept when its block had been built (build.hpp).
struct cut_parameter {
    at::Tensor parameter;              ///< the module's own, empty meanwhile
    std::vector<std::int64_t> shape;   ///< that it has when it is whole
    std::int64_t first = 0, count = 0; ///< the elements that were kept
    at::Tensor values{};               ///< these
    std::int64_t version = 0; ///< of the parameter; another one: somebody has written to it
};

/// The part of unit<M> that does not depend on M.
class unit_mark {
public:
    unit_mark() = default;
    unit_mark(const unit_mark&) noexcept {} // a copy of a module belongs to nobody
    unit_mark& operator=(const unit_mark&) = delete;
    virtual ~unit_mark();

    /// From now on `hooks` are asked, with this number. Null: nobody is.
    void attach(std::shared_ptr<unit_hooks> hooks, std::size_t number) noexcept {
        hooks_ = std::move(hooks);
        number_ = number;
    }

    /// Floating-point tensors that it is called with are cast to this type first (precision.hpp).
    void compute_in(std::optional<at::ScalarType> type) noexcept { type_ = type; }
    [[nodiscard]] std::optional<at::ScalarType> computes_in() const noexcept { return type_; }

    /// Activations are computed again in the backward pass (recompute.hpp).
    void recompute(bool yes) noexcept { recomputes_ = yes; }
    [[nodiscard]] bool recomputes() const noexcept { return recomputes_; }
    /// What the block saves for the backward pass goes there (offload.hpp); null: nowhere.
    void offload(std::shared_ptr<activation_store> to) noexcept { offload_ = std::move(to); }
    [[nodiscard]] const std::shared_ptr<activation_store>& offloads() const noexcept {
        return offload_;
    }

    /// Forward passes of this step that have still to be computed again: until then a gradient of
    /// the block is not final.
    [[nodiscard]] int pending() const noexcept { return pending_; }
    void expect(int more) const noexcept { pending_ += more; }
    void expect_nothing() const noexcept { pending_ = 0; }

    /// Parameters of this block, without those of blocks inside, that are there in part only.
    [[nodiscard]] std::vector<cut_parameter>& cut() noexcept { return cut_; }

    /// Its parameters were sharded when a training failed: they have no values any more.
    void lose() noexcept { lost_ = true; }
    [[nodiscard]] bool is_lost() const noexcept { return lost_; }

protected:
    std::shared_ptr<unit_hooks> hooks_;
    std::shared_ptr<activation_store> offload_;
    std::size_t number_ = 0;
    bool lost_ = false, recomputes_ = false;
    std::optional<at::ScalarType> type_;
    std::vector<cut_parameter> cut_;
    mutable int pending_ = 0; // forward() may be const
};

namespace detail {

// Calls visit(tensor) for every tensor in a value, in order.
template <class Visit>
void each_tensor(at::Tensor& value, const Visit& visit) {
    visit(value);
}
template <class T, class Visit>
void each_tensor(std::vector<T>& value, const Visit& visit) {
    for (auto& each : value) each_tensor(each, visit);
}
template <class T, std::size_t N, class Visit>
void each_tensor(std::array<T, N>& value, const Visit& visit) {
    for (auto& each : value) each_tensor(each, visit);
}
template <class... T, class Visit>
void each_tensor(std::tuple<T...>& value, const Visit& visit) {
    std::apply([&](auto&... each) { (each_tensor(each, visit), ...); }, value);
}
template <class A, class B, class Visit>
void each_tensor(std::pair<A, B>& value, const Visit& visit) {
    each_tensor(value.first, visit);
    each_tensor(value.second, visit);
}

template <class R>
concept holds_tensors =
    requires(R& value, void (*visit)(at::Tensor&)) { each_tensor(value, visit); };

/// Part of the graph of gradients; the tensor itself when it has the type, or holds no fractions.
[[nodiscard]] at::Tensor cast_to(const at::Tensor& tensor, at::ScalarType type);

/// The block has been built: build.hpp may cut it up.
void tell_build_scope(torch::nn::Module& block, unit_mark& mark);

/// The last member of a unit: its constructor runs when the block's has ended. A copy was built
/// before.
struct end_of_construction {
    end_of_construction(torch::nn::Module& block, unit_mark& mark) {
        tell_build_scope(block, mark);
    }
    end_of_construction(const end_of_construction&) noexcept = default;
    end_of_construction& operator=(const end_of_construction&) noexcept = default;
};

/// The forward of a block with its tensors as lists.
using block_call = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// Calls it without keeping activations; the backward pass calls it again, where autograd allows
/// that, with the state of the block as it was, and leaves the state as one call would have.
///   block            whose buffers, modes and parameters these are
///   before_backward  is called before that
[[nodiscard]] std::vector<at::Tensor> call_recomputed(const unit_mark& block, block_call call,
                                                      std::vector<at::Tensor> inputs,
                                                      std::function<void()> before_backward);
[[nodiscard]] bool gradients_are_on();
[[noreturn]] void refuse_recompute();

/// Where this thread's saved tensors go from now on; returns where they went.
std::shared_ptr<activation_store> exchange_store(std::shared_ptr<activation_store> store);

/// While it lives, saved tensors go where the mark says.
class offload_guard {
public:
    explicit offload_guard(const unit_mark& mark) : set_(mark.offloads() != nullptr) {
        if (set_) before_ = exchange_store(mark.offloads());
    }
    ~offload_guard() {
        if (set_) (void)exchange_store(std::move(before_));
    }
    offload_guard(const offload_guard&) = delete;
    offload_guard& operator=(const offload_guard&) = delete;

private:
    bool set_;
    std::shared_ptr<activation_store> before_;
};

/// forward(arguments...) between the hooks.
template <class R, class Forward, class... Args>
R run_hooked(const std::shared_ptr<unit_hooks>& hooks, std::size_t number, const Forward& forward,
             Args&... arguments) {
    if (hooks) hooks->before_forward(number);
    R result = forward(arguments...);
    if (hooks) {
        std::vector<at::Tensor> outputs;
        each_tensor(result, [&](at::Tensor& t) { outputs.push_back(t); });
        hooks->after_forward(number, outputs);
    }
    return result;
}

/// The arguments that are tensors, in order.
template <class... Args, class Visit>
void each_input(std::tuple<Args...>& arguments, const Visit& visit) {
    const auto one = [&](auto& argument) {
        if constexpr (std::same_as<std::remove_cvref_t<decltype(argument)>, at::Tensor>)
            visit(argument);
    };
    std::apply([&](auto&... each) { (one(each), ...); }, arguments);
}

/// forward(arguments...), computed again in the backward pass. Tensors travel through the autograd
/// graph, the other arguments are copied. The mark lives as long as the parameters of its block.
template <class R, class Forward, class... Args>
R run_recomputed(const unit_mark& mark, const std::shared_ptr<unit_hooks>& hooks,
                 std::size_t number, const Forward& forward, Args&... args) {
    auto arguments = std::make_shared<std::tuple<Args...>>(args...);
    auto form = std::make_shared<std::optional<R>>(); // of what forward() returns
    std::vector<at::Tensor> inputs;
    each_input(*arguments, [&](at::Tensor& t) { inputs.push_back(std::exchange(t, {})); });
    auto outputs = call_recomputed(
        mark,
        [=](const std::vector<at::Tensor>& given) {
            auto with = *arguments;
            auto next = given.begin();
            each_input(with, [&](at::Tensor& t) { t = *next++; });
            const bool again = gradients_are_on(); // then it is gathered already
            R result = std::apply(
                [&](auto&... each) {
                    return again ? forward(each...)
                                 : run_hooked<R>(hooks, number, forward, each...);
                },
                with);
            std::vector<at::Tensor> tensors;
            each_tensor(result, [&](at::Tensor& t) { tensors.push_back(t); });
            if (!again) *form = std::move(result);
            return tensors;
        },
        std::move(inputs),
        [hooks, number, &mark] {
            if (mark.pending() > 0) mark.expect(-1);
            if (hooks) hooks->before_backward(number);
        });
    mark.expect(1);
    auto next = outputs.begin();
    R result = std::move(**form);
    form->reset();
    each_tensor(result, [&](at::Tensor& t) { t = std::move(*next++); });
    return result;
}

/// What unit<M> does around M's forward.
template <class R, class Forward, class... Args>
R run_unit(const unit_mark& mark, const std::shared_ptr<unit_hooks>& hooks, std::size_t number,
           const Forward& forward, Args&... args) {
    if (const auto type = mark.computes_in()) {
        const auto cast = [&](auto& argument) {
            if constexpr (holds_tensors<std::remove_reference_t<decltype(argument)>>)
                each_tensor(argument, [&](at::Tensor& t) { t = cast_to(t, *type); });
        };
        (cast(args), ...);
    }
    const offload_guard guard(mark);
    if (!mark.recomputes() || !gradients_are_on())
        return run_hooked<R>(hooks, number, forward, args...);
    if constexpr ((... && (std::same_as<Args, at::Tensor> || !holds_tensors<Args>)))
        return run_recomputed<R>(mark, hooks, number, forward, args...);
    else
        refuse_recompute();
}

/// What does not depend on the arguments.
template <class M, class R>
class unit_base : public M, public unit_mark {
    static_assert(holds_tensors<R>,
                  "the forward of a unit returns a tensor, or vectors, arrays, pairs or tuples of "
                  "tensors");

public:
    using M::M;

protected:
    [[nodiscard]] bool is_plain() const noexcept {
        return !this->hooks_ && !this->recomputes_ && !this->type_ && !this->offload_;
    }
    template <class Call, class... Copies>
    R run(const Call& call, Copies... copies) const {
        return run_unit<R>(*this, this->hooks_, this->number_, call, copies...);
    }
};

/// Arguments are copied for the second call: nothing may be handed back through them.
template <class Arg>
constexpr bool takes_values =
    !std::is_lvalue_reference_v<Arg> || std::is_const_v<std::remove_reference_t<Arg>>;

/// One base per signature, so that forward() of unit<M> is no template.
template <class M, class Signature>
class unit_forward;

template <class M, class C, class R, class... Args>
class unit_forward<M, R (C::*)(Args...)> : public unit_base<M, R> {
    using base = unit_base<M, R>;
    static_assert((... && takes_values<Args>), "the forward of a unit writes to no argument");

public:
    using base::base;
    R forward(Args... args) {
        if (this->is_plain()) return M::forward(std::forward<Args>(args)...);
        const auto call = [this](std::remove_cvref_t<Args>&... arguments) -> R {
            return M::forward(static_cast<Args>(arguments)...);
        };
        return this->run(call, std::remove_cvref_t<Args>(args)...);
    }
};

template <class M, class C, class R, class... Args>
class unit_forward<M, R (C::*)(Args...) const> : public unit_base<M, R> {
    using base = unit_base<M, R>;
    static_assert((... && takes_values<Args>), "the forward of a unit writes to no argument");

public:
    using base::base;
    R forward(Args... args) const {
        if (this->is_plain()) return M::forward(std::forward<Args>(args)...);
        const auto call = [this](std::remove_cvref_t<Args>&... arguments) -> R {
            return M::forward(static_cast<Args>(arguments)...);
        };
        return this->run(call, std::remove_cvref_t<Args>(args)...);
    }
};

} // namespace detail
} // namespace skein::train

namespace skein {

/// A block of a model: M is the implementation, a torch::nn::Module with one forward().
template <class M>
class unit : public train::detail::unit_forward<M, decltype(&M::forward)> {
    using base = train::detail::unit_forward<M, decltype(&M::forward)>;

public:
    using base::base;

private:
    [[no_unique_address]] train::detail::end_of_construction built_{*this, *this};
};

} // namespace skein


// ======== skein/train/detail/unit.ipp
// Bodies of <skein/train/unit.hpp>.


// ======== skein/train/detail/unit_recompute.ipp
// A call of a block whose activations are computed again in the backward pass. Used by
// <skein/train/detail/unit.ipp> alone.
//
// The second call happens in another place and at another time than the first. It sees what the
// first one saw (random numbers, buffers, autocast), and what it does to them is undone: the block
// has been called once. What it cannot see again, or what autograd does not allow, is refused.
//
//   source: Chen et al. 2016 (arXiv 1604.06174); torch.utils.checkpoint with use_reentrant=True


// ======== skein/torch/engine.hpp
// The door to what torch/torch.h leaves out of autograd: its engine, what happens to tensors that
// it saves, how it casts, and which tensors overlap.


#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

#include <ATen/MemoryOverlap.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif


// ======== skein/train/detail/unit_recompute.ipp, continued
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// The state of the default generator, of which dropout draws.
struct generator_state {
    static at::Tensor get() {
        auto generator = at::detail::getDefaultCPUGenerator();
        const std::lock_guard lock(generator.mutex());
        return generator.get_state();
    }
    static void set(const at::Tensor& state) {
        auto generator = at::detail::getDefaultCPUGenerator();
        const std::lock_guard lock(generator.mutex());
        generator.set_state(state);
    }
};

/// How this thread casts. The cache is off: it would hand a weight that the first call has cast,
/// which has no gradient, to the second one.
struct autocast_state {
    bool on = at::autocast::is_autocast_enabled(at::kCPU);
    at::ScalarType type = at::autocast::get_autocast_dtype(at::kCPU);
    bool cached = at::autocast::is_autocast_cache_enabled();

    void set(bool with_cache) const {
        at::autocast::set_autocast_enabled(at::kCPU, on);
        at::autocast::set_autocast_dtype(at::kCPU, type);
        at::autocast::set_autocast_cache_enabled(with_cache && cached);
    }
};

/// Buffers of a block at some time.
class buffer_state {
public:
    struct buffer {
        at::Tensor tensor, values;
    };

    explicit buffer_state(const torch::nn::Module& block) {
        at::NoGradGuard no_grad;
        for (const auto& tensor : block.buffers())
            if (tensor.defined()) all_.push_back({tensor, tensor.detach().clone()});
    }
    /// Below autograd: the graph of another call may have saved the buffer.
    void put_back() const {
        at::NoGradGuard no_grad;
        for (const auto& [tensor, values] : all_) {
            if (same(tensor, values)) continue;
            if (tensor.sizes() == values.sizes() && tensor.scalar_type() == values.scalar_type())
                tensor.variable_data().copy_(values);
            else
                tensor.set_data(values.clone());
        }
    }
    /// Only those that have other values now.
    void keep_changed() {
        std::erase_if(all_, [](const buffer& b) { return same(b.tensor, b.values); });
    }

private:
    static bool same(const at::Tensor& a, const at::Tensor& b) {
        if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
        if (!a.is_contiguous() || !b.is_contiguous()) return at::equal(a.detach(), b);
        return a.nbytes() == 0 ||
               std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
    }
    std::vector<buffer> all_;
};

/// What must not have changed between the two calls: nobody could undo it.
struct block_state {
    std::vector<bool> modes;    ///< training or not, of the block and all modules inside
    std::uint64_t versions = 0; ///< of its parameters, added up

    explicit block_state(const torch::nn::Module& block) {
        block.apply([&](const torch::nn::Module& each) { modes.push_back(each.is_training()); });
        for (const auto& p : block.parameters())
            if (p.defined())
                versions += p.unsafeGetTensorImpl()->version_counter().current_version();
    }
};

[[noreturn]] inline void refuse_second_call(const std::string& why, const char* hint) {
    throw error(errc::not_supported,
                "not supported: a block that is computed again (checkpoint_activations) " + why)
        .with_hint(hint);
}

/// As torch.utils.checkpoint asks the engine: the second call runs a backward pass of its own,
/// which adds to all gradients that it comes to and has no graph.
SKEIN_INLINE void require_plain_backward() {
    const char* const hint = "leave the block out of checkpoint_activations(), or take the loss's "
                             "gradient with backward() alone";
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid())
        refuse_second_call("under autograd::grad(), or a backward() for some inputs only", hint);
    if (torch::GradMode::is_enabled())
        refuse_second_call("in a backward pass with create_graph", hint);
}

/// What the backward pass needs beside the inputs.
struct recomputed_call : torch::CustomClassHolder {
    recomputed_call(const torch::nn::Module& of, block_call what, std::function<void()> before)
        : block(&of), call(std::move(what)), before_backward(std::move(before)),
          generator(generator_state::get()), buffers(of), state(of) {}

    std::vector<at::Tensor> first(const std::vector<at::Tensor>& inputs);
    std::vector<at::Tensor> again(const std::vector<at::Tensor>& inputs) const;
    void require_unchanged() const;

    const torch::nn::Module* block;
    block_call call;
    std::function<void()> before_backward;
    at::Tensor generator; // before the first call
    autocast_state autocast;
    buffer_state buffers;
    block_state state;
    std::vector<std::vector<std::int64_t>> shapes; // of what it returned
};

/// Calls `restore` when it goes.
template <class Restore>
struct restored {
    Restore restore;
    ~restored() { restore(); }
};

SKEIN_INLINE std::vector<at::Tensor> recomputed_call::first(const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> outputs;
    {
        const auto back = [this] { autocast.set(/*with_cache=*/true); };
        const restored<decltype(back)> guard{back};
        autocast.set(/*with_cache=*/false);
        outputs = call(inputs); // without gradients: inside of a function
    }
    buffers.keep_changed();
    for (const auto& each : outputs)
        shapes.push_back(each.defined() ? each.sizes().vec() : std::vector<std::int64_t>{-1});
    return outputs;
}

SKEIN_INLINE void recomputed_call::require_unchanged() const {
    const block_state now(*block);
    if (now.versions != state.versions)
        refuse_second_call("whose parameters were written to between forward and backward",
                           "write to parameters between steps");
    if (now.modes != state.modes)
        refuse_second_call("that changed between train() and eval() between forward and backward",
                           "change the mode behind backward()");
}

SKEIN_INLINE std::vector<at::Tensor> recomputed_call::again(
    const std::vector<at::Tensor>& inputs) const {
    std::vector<at::Tensor> outputs;
    {
        const auto generator_now = generator_state::get();
        const autocast_state autocast_now;
        const auto back = [&] {
            generator_state::set(generator_now);
            autocast_now.set(/*with_cache=*/true);
        };
        const restored<decltype(back)> guard{back};
        generator_state::set(generator);
        autocast.set(/*with_cache=*/false);
        buffers.put_back();
        const torch::AutoGradMode on(true);
        outputs = call(inputs);
    }
    bool same = outputs.size() == shapes.size();
    for (std::size_t i = 0; same && i < outputs.size(); ++i)
        same = outputs[i].defined() ? outputs[i].sizes() == at::IntArrayRef(shapes[i])
                                    : shapes[i] == std::vector<std::int64_t>{-1};
    if (!same)
        refuse_second_call("returned other tensors than the first time",
                           "keep what forward() counts in buffers: those have the values again "
                           "that they had");
    return outputs;
}

struct recompute : torch::autograd::Function<recompute> {
    using list = torch::autograd::variable_list;

    static list forward(torch::autograd::AutogradContext* ctx,
                        c10::intrusive_ptr<recomputed_call> call, at::TensorList inputs) {
        ctx->save_for_backward(inputs.vec());
        auto outputs = call->first(inputs.vec());
        ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
        return outputs;
    }

    static list backward(torch::autograd::AutogradContext* ctx, list gradients) {
        require_plain_backward();
        const auto holder = ctx->saved_data["call"].toCapsule();
        const auto& call = static_cast<const recomputed_call&>(*holder);
        call.require_unchanged();
        call.before_backward();
        const auto saved = ctx->get_saved_variables();
        list inputs;
        for (const auto& s : saved)
            inputs.push_back(s.detach().set_requires_grad(s.requires_grad()));
        // Not before the end: the graph may have saved a buffer.
        const buffer_state buffers_now(*call.block);
        const auto back_to_now = [&] { buffers_now.put_back(); };
        const restored<decltype(back_to_now)> guard{back_to_now};
        const list outputs = call.again(inputs);
        list roots, from;
        for (std::size_t i = 0; i < outputs.size(); ++i)
            if (outputs[i].requires_grad() && gradients[i].defined()) {
                roots.push_back(outputs[i]);
                from.push_back(gradients[i]);
            }
        if (!roots.empty()) torch::autograd::backward(roots, from);
        list back{at::Tensor()}; // for the call
        for (const auto& input : inputs)
            back.push_back(input.requires_grad() ? input.grad() : at::Tensor());
        return back;
    }
};

SKEIN_INLINE std::vector<at::Tensor> call_recomputed(const unit_mark& block, block_call call,
                                                     std::vector<at::Tensor> inputs,
                                                     std::function<void()> before_backward) {
    const auto count = inputs.size();
    auto held = c10::make_intrusive<recomputed_call>(
        dynamic_cast<const torch::nn::Module&>(block),
        [call = std::move(call), count](const std::vector<at::Tensor>& all) {
            return call({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)});
        },
        std::move(before_backward));
    // Parameters alone make a block worth a backward pass: something has to need a gradient.
    inputs.push_back(torch::empty({0}, torch::TensorOptions().requires_grad(true)));
    return recompute::apply(std::move(held), at::TensorList(inputs));
}

} // namespace skein::train::detail


// ======== skein/train/detail/unit.ipp, continued
namespace skein::train {

SKEIN_INLINE unit_hooks::~unit_hooks() = default;
SKEIN_INLINE unit_mark::~unit_mark() = default;

namespace detail {

SKEIN_INLINE bool gradients_are_on() { return torch::GradMode::is_enabled(); }

SKEIN_INLINE at::Tensor cast_to(const at::Tensor& tensor, at::ScalarType type) {
    const bool fits =
        !tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == type;
    return fits ? tensor : tensor.to(type);
}

SKEIN_INLINE void refuse_recompute() {
    throw error(
        errc::not_supported,
        "not supported: recomputing a block whose forward takes tensors inside of other types")
        .with_hint("give them as arguments of their own, or leave the block out of "
                   "checkpoint_activations()");
}

} // namespace detail
} // namespace skein::train


// ======== skein/train/build.hpp, continued
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

namespace skein::train {

/// Calls visit(name, parameter) for every parameter in order of registration, each once. Parameters
/// of blocks that are cut up already are whole meanwhile: what visit writes to them is kept. What
/// was there before is there only in the rows that this rank owns.
void for_each_parameter(torch::nn::Module& module,
                        const std::function<void(const std::string&, at::Tensor&)>& visit);

namespace detail {

/// Which part of every block a rank keeps.
struct build_plan {
    int shards = 1; ///< 1: models are built whole
    int shard = 0;
    std::function<bool(const torch::nn::Module&)> is_block = {};
    /// Modules inside of blocks that stay whole: keep_f32.
    std::function<bool(const torch::nn::Module&)> stays_whole = {};
};

/// Blocks that are built on this thread while it lives are cut up. One at a time per thread.
class build_scope {
public:
    explicit build_scope(build_plan plan);
    build_scope(const build_scope&) = delete;
    build_scope& operator=(const build_scope&) = delete;
    ~build_scope();

    /// The one of this thread, or null.
    [[nodiscard]] static build_scope* current() noexcept;
    /// The constructor of a block has ended.
    void cut(torch::nn::Module& block, unit_mark& mark);
    /// Of all values before they were cut.
    [[nodiscard]] std::uint64_t checksum() const noexcept { return checksum_; }

private:
    [[nodiscard]] bool stays_whole(torch::nn::Module& block, const std::string& name) const;
    void keep_own_rows(unit_mark& mark);

    build_plan plan_;
    std::uint64_t checksum_ = 0;
};

/// Parameters that were cut up, by tensor.
[[nodiscard]] std::unordered_map<const void*, cut_parameter*> cut_parameters(
    torch::nn::Module& module);
/// They are in a store now.
void forget_cuts(torch::nn::Module& module);
/// The ranks that wait for this one in build_for() get the reason.
void tell_peers(const context& ctx, std::exception_ptr why);

} // namespace detail

/// What make() returns, built for a strategy: see Trainer::build(). Collective.
///   errors  mismatch when ranks drew different values
template <class Strategy, class Make>
[[nodiscard]] auto build_for(const context& ctx, Make make) {
    if constexpr (requires { Strategy::plan_build(ctx); }) {
        detail::build_scope scope(Strategy::plan_build(ctx));
        try {
            auto model = make();
            require_same(ctx, scope.checksum(), "the initial values of the model");
            return model;
        } catch (...) {
            detail::tell_peers(ctx, std::current_exception());
            throw;
        }
    } else {
        return make();
    }
}

} // namespace skein::train


// ======== skein/train/detail/build.ipp
// Bodies of <skein/train/build.hpp>.


#include <unordered_set>
#include <vector>

namespace skein::train {

namespace detail {

SKEIN_INLINE build_scope*& this_threads_scope() noexcept {
    thread_local build_scope* scope = nullptr;
    return scope;
}

SKEIN_INLINE build_scope* build_scope::current() noexcept { return this_threads_scope(); }

SKEIN_INLINE build_scope::build_scope(build_plan plan) : plan_(std::move(plan)) {
    SKEIN_CHECK(current() == nullptr, "a model built inside of another one's build()");
    this_threads_scope() = this;
}

SKEIN_INLINE build_scope::~build_scope() { this_threads_scope() = nullptr; }

/// The part that is kept is all of a parameter that there is from now on.
SKEIN_INLINE void keep_part(cut_parameter& cut) {
    at::NoGradGuard no_grad;
    auto whole = cut.parameter.detach().contiguous().view({-1});
    cut.values = whole.narrow(0, cut.first, cut.count).clone();
    // As many dimensions as before, for who asks for them before drawing values; and no layer takes
    // it.
    auto nothing = cut.shape;
    if (nothing.empty()) nothing.push_back(0);
    nothing.back() = 0;
    cut.parameter.set_data(at::empty(nothing, cut.parameter.options()));
    cut.version = cut.parameter._version();
}

SKEIN_INLINE bool build_scope::stays_whole(torch::nn::Module& block,
                                           const std::string& name) const {
    if (!plan_.stays_whole) return false;
    for (const auto& inside : block.named_modules(std::string(), /*include_self=*/false))
        if (name.starts_with(inside.key() + ".") && plan_.stays_whole(*inside.value())) return true;
    return plan_.stays_whole(block);
}

SKEIN_INLINE void build_scope::cut(torch::nn::Module& block, unit_mark& mark) {
    if (plan_.shards == 1 || !plan_.is_block(block)) return;
    auto seen = cut_parameters(block); // of blocks inside
    for (const auto& item : block.named_parameters(true)) {
        const auto& p = item.value();
        if (!p.defined() || !p.requires_grad() || p.scalar_type() != at::kFloat ||
            stays_whole(block, item.key()) ||
            !seen.emplace(p.unsafeGetTensorImpl(), nullptr).second)
            continue;
        mark.cut().push_back({.parameter = p, .shape = p.sizes().vec()});
    }
    keep_own_rows(mark);
}

SKEIN_INLINE void build_scope::keep_own_rows(unit_mark& mark) {
    std::vector<placed_parameter> placed;
    std::int64_t size = 0;
    for (const auto& cut : mark.cut()) {
        const auto& p = cut.parameter;
        const auto row =
            std::max<std::int64_t>(1, p.dim() > 0 && p.size(0) > 0 ? p.numel() / p.size(0) : 1);
        placed.push_back({size, p.numel(), row});
        size += padded_count(p.numel());
        const auto values = p.detach().contiguous();
        checksum_ =
            crc32c({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()},
                   static_cast<std::uint32_t>(checksum_));
    }
    const auto own =
        cut_unit(placed, {0, size}, plan_.shards)[static_cast<std::size_t>(plan_.shard)];
    for (std::size_t i = 0; i < placed.size(); ++i) {
        const auto mine = overlap({placed[i].offset, placed[i].offset + placed[i].count}, own);
        auto& cut = mark.cut()[i];
        cut.first = mine.begin - placed[i].offset;
        cut.count = mine.size();
        keep_part(cut);
    }
}

SKEIN_INLINE std::unordered_map<const void*, cut_parameter*> cut_parameters(
    torch::nn::Module& module) {
    std::unordered_map<const void*, cut_parameter*> all;
    const auto add = [&](unit_mark* mark) {
        if (mark == nullptr) return;
        for (auto& cut : mark->cut()) all.emplace(cut.parameter.unsafeGetTensorImpl(), &cut);
    };
    add(dynamic_cast<unit_mark*>(&module));
    for (const auto& each : module.modules(/*include_self=*/false))
        add(dynamic_cast<unit_mark*>(each.get()));
    return all;
}

SKEIN_INLINE void forget_cuts(torch::nn::Module& module) {
    const auto forget = [](unit_mark* mark) {
        if (mark != nullptr) mark->cut().clear();
    };
    forget(dynamic_cast<unit_mark*>(&module));
    for (const auto& each : module.modules(/*include_self=*/false))
        forget(dynamic_cast<unit_mark*>(each.get()));
}

SKEIN_INLINE void tell_peers(const context& ctx, std::exception_ptr why) {
    ctx.abort(to_error(why));
}

SKEIN_INLINE void tell_build_scope(torch::nn::Module& block, unit_mark& mark) {
    if (auto* const scope = build_scope::current()) scope->cut(block, mark);
}

} // namespace detail

SKEIN_INLINE void for_each_parameter(
    torch::nn::Module& module, const std::function<void(const std::string&, at::Tensor&)>& visit) {
    const auto cut = detail::cut_parameters(module);
    std::unordered_set<const void*> seen;
    for (auto& item : module.named_parameters(true)) {
        auto p = item.value();
        if (!p.defined() || !seen.insert(p.unsafeGetTensorImpl()).second) continue;
        const auto found = cut.find(p.unsafeGetTensorImpl());
        if (found == cut.end()) {
            visit(item.key(), p);
            continue;
        }
        auto& part = *found->second;
        {
            at::NoGradGuard no_grad;
            auto whole = at::zeros(part.shape, p.options());
            whole.view({-1}).narrow(0, part.first, part.count).copy_(part.values);
            p.set_data(whole);
        }
        visit(item.key(), p);
        detail::keep_part(part);
    }
}

} // namespace skein::train

// ======== skein/train/callbacks.hpp
// What a Trainer tells while it runs, and how callbacks are found.
//
// A callback is any object with one or more of the members below; a member that is absent costs
// nothing, one with the wrong parameter is refused at compile time. Every rank calls its callbacks.
//
//     struct log_loss {
//         void on_step(const skein::train::step_info& s) { fmt::print("{} {}\n", s.step, s.loss); }
//     };
//     skein::Trainer<skein::DDP<>, log_loss> trainer(ctx, config, log_loss{});
//
// on_step and on_eval may return an action. A stop that some rank's callback asks for travels with
// the row of the next step, as a signal does: all ranks end after that step, with a checkpoint. A
// callback that says why, by a member std::string stop_reason() const, has it printed at the end;
// empty while there is nothing.
//
// A callback with both of these members has its state in every checkpoint, by the name of its type:
//
//     std::string state() const;                // asked of rank 0 after the events of the step
//     void restore(std::string_view state);     // on every rank, before on_start


#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace skein::train {

/// Before the first step.
struct start_info {
    int rank = 0, world_size = 1;
    std::uint64_t first_step = 0;  ///< finished steps; > 0 after a resume
    std::uint64_t total_steps = 0; ///< 0: as many as a stream gives in config.epochs
    std::int64_t parameters = 0;   ///< trainable elements
    std::string run_path{};
    std::string resumed_from{}; ///< a checkpoint, or empty
    std::string strategy{};     ///< "DDP"; empty for one without a name
    /// "3 epochs of 120 steps, ..."; empty when the steps were given.
    std::string epochs{};
};

/// What a callback wants to happen next.
enum class action : std::uint8_t {
    go_on,
    stop, ///< training ends after the next step, on all ranks
};

/// Where the time of a step went, in seconds of the slowest rank, each number by itself.
struct step_timing {
    double data = 0.0;      ///< waited for batches: all of making them without prefetching
    double forward = 0.0;   ///< the model and the loss
    double backward = 0.0;  ///< the backward pass; gradients travel meanwhile
    double exposed = 0.0;   ///< the compute thread waited for other ranks since the row before
    double optimizer = 0.0; ///< of the step before: it comes behind the row
    /// Share of the time gradients travelled that was hidden behind the backward pass, 0 to 1; of
    /// the rank with the least. Of the world's communicator: what groups of a part of the ranks do
    /// is not in it.
    double overlap = 0.0;
};

/// After every optimizer step.
struct step_info {
    int rank = 0;
    std::uint64_t step = 0; ///< finished steps, this one included
    double loss = 0.0;      ///< mean over the global batch
    double lr = 0.0;
    double grad_norm = 0.0;    ///< before clipping
    double seconds = 0.0;      ///< of this step
    double tokens_per_s = 0.0; ///< of this step, over all ranks; samples when tokens are unknown
    const std::vector<report::metric_value>* metrics =
        nullptr; ///< everything reported, merged over ranks
    step_timing timing{};
};

/// After every evaluation.
struct eval_info {
    int rank = 0;
    std::uint64_t step = 0;
    const std::vector<report::metric_value>* metrics =
        nullptr; ///< "val_loss" and what the loss reported
    double seconds = 0.0;
};

/// After every checkpoint that is durable.
struct checkpoint_info {
    int rank = 0;
    std::uint64_t step = 0;
    std::string path{};
    std::uint64_t bytes = 0;
    double seconds = 0.0;
};

/// How a run ended; also what fit() returns.
struct fit_result {
    int rank = 0;
    std::uint64_t first_step = 0; ///< where this start of the program began
    std::uint64_t steps = 0;      ///< finished
    std::uint64_t total = 0;      ///< asked for; of a stream with epochs what they came to
    double loss = 0.0;            ///< of the last step
    double val_loss = 0.0;        ///< of the last evaluation; NaN without one
    std::uint64_t val_step = 0;   ///< after which step that was
    double seconds = 0.0;         ///< of this start, evaluation and saving included
    double tokens_per_s = 0.0;    ///< of the training steps of this start
    double peak_rss_bytes = 0.0;  ///< the largest of all ranks
    std::string run_name{}, run_path{}, checkpoint{};
    bool stopped = false;      ///< ended early because it was asked to
    int stop_signal = 0;       ///< by SIGINT or SIGTERM on some rank; 0 when it was no signal
    std::string stop_reason{}; ///< of the callback that asked for it, when it says one
};

/// Has at least one of the members; whether they fit is checked where they are called.
template <class C>
concept callback =
    requires(C& c, const start_info& e) { c.on_start(e); } || requires { &C::on_start; } ||
    requires(C& c, const step_info& e) { c.on_step(e); } || requires { &C::on_step; } ||
    requires(C& c, const eval_info& e) { c.on_eval(e); } || requires { &C::on_eval; } ||
    requires(C& c, const checkpoint_info& e) { c.on_checkpoint(e); } ||
    requires { &C::on_checkpoint; } || requires(C& c, const fit_result& e) { c.on_end(e); } ||
    requires { &C::on_end; };

namespace detail {

// One function per event. `&C::on_x` finds a member of that name that cannot take the event.

/// Calls it; what it returns if that is an action.
template <class Call>
action action_of(Call call) {
    if constexpr (std::is_same_v<decltype(call()), action>) {
        return call();
    } else {
        call();
        return action::go_on;
    }
}
template <class C>
void tell(C& c, const start_info& info) {
    if constexpr (requires { c.on_start(info); })
        c.on_start(info);
    else
        static_assert(!requires { &C::on_start; }, "on_start must take const train::start_info&");
}
template <class C>
action tell(C& c, const step_info& info) {
    if constexpr (requires { c.on_step(info); })
        return action_of([&]() -> decltype(auto) { return c.on_step(info); });
    else
        static_assert(!requires { &C::on_step; }, "on_step must take const train::step_info&");
    return action::go_on;
}
template <class C>
action tell(C& c, const eval_info& info) {
    if constexpr (requires { c.on_eval(info); })
        return action_of([&]() -> decltype(auto) { return c.on_eval(info); });
    else
        static_assert(!requires { &C::on_eval; }, "on_eval must take const train::eval_info&");
    return action::go_on;
}
template <class C>
void tell(C& c, const checkpoint_info& info) {
    if constexpr (requires { c.on_checkpoint(info); })
        c.on_checkpoint(info);
    else
        static_assert(
            !requires { &C::on_checkpoint; },
            "on_checkpoint must take const train::checkpoint_info&");
}
template <class C>
void tell(C& c, const fit_result& info) {
    if constexpr (requires { c.on_end(info); })
        c.on_end(info);
    else
        static_assert(!requires { &C::on_end; }, "on_end must take const train::fit_result&");
}

/// Has state that goes into checkpoints.
template <class C>
concept keeps_state = requires(C& c, const C& fixed, std::string_view saved) {
    { fixed.state() } -> std::convertible_to<std::string>;
    c.restore(saved);
};

} // namespace detail

} // namespace skein::train

// ======== skein/train/ddp.hpp
// Data parallel training: every rank holds the whole model and sees its share of each batch.
//
// The gradients are cut into buckets. Every gradient that is settled counts down; when a bucket is
// complete, and all before it are on their way, its all-reduce starts on the communication thread
// while the backward pass goes on. Buckets leave in the same order on every rank whatever the order
// of hooks, so parameters that a rank does not use cannot hang the others.
//
//     Trainer<DDP<>> trainer(ctx, config);             // buckets of 1 and then 25 MiB
//     Trainer<DDP<bucket<1, 8>>> smaller(ctx, config);
//     Trainer<DDP<bucket<>, precision<bf16>>> half(ctx, config);
//
//   source: Li et al. 2020 (arXiv 2006.15704)


// ======== skein/train/detail/sharded.hpp
// One implementation behind every strategy of several ranks: which groups a unit's gradients are
// reduced over, where its parameters are, and when both travel.
//
//     DDP      shard group: none replicas: all ranks gradients summed, everybody updates all
//     Zero1    shard group: all         replicas: none         everybody updates its part
//     Zero2    the same, and of the reduced gradients everybody keeps its part only
//     FSDP     the same, and of the parameters too, between uses
//     Hybrid   shard group: the host    replicas: one rank of each host
//
// Units leave for reduction in one fixed order, from the last to the first, whatever a rank leaves
// unused; for gathering in the order of the forward pass and then backwards, on a group of their
// own. When all ranks of the shard group are on one host, the parameters are one memory for all of
// them: nothing is gathered, and nothing is dropped, because there is one copy only.


// ======== skein/train/flat.hpp
// The flat store: all trainable parameters of a module are views of one buffer, all gradients of
// another.
//
// Optimizer, clipping, gradient exchange and checkpoints then work on a few long arrays and not on
// hundreds of small tensors, without a copy in either direction. The module keeps its own Tensor
// objects (their data is re-pointed), so user code sees ordinary parameters.
//
// Parameters are grouped into units: what is gathered, reduced and dropped together. Inside a unit
// they lie in order of registration, each at a multiple of 64 bytes; the padding stays zero. Of
// every unit this rank owns a range (all of it, unless the store is cut between ranks): the
// optimizer, the norm and checkpoints walk what is owned and never ask which strategy it is.


// ======== skein/train/precision.hpp
// Mixed precision: a model that computes in 16 bits, trained in float32.
//
//     FSDP<auto_wrap<Block>, precision<bf16>>              gradients are summed in float32
//     FSDP<auto_wrap<Block>, precision<bf16, bf16>>        and in bfloat16: half the traffic
//     DDP<bucket<>, precision<bf16>, keep_f32<torch::nn::BatchNorm2d>>
//
// What the optimizer updates is a float32 master copy of the rows that a rank owns; the parameters
// that the model sees are a 16-bit view of all rows, filled by one cast after every step.
// Checkpoints hold the masters, so a run goes on in any precision. After fit() the module has its
// float32 values.
//
// A block that is skein::unit casts the floating-point tensors it is called with; what reaches
// other layers the model casts itself (x.to(weight.dtype())). Take the loss of float32:
// logits.to(torch::kFloat).
//
//   source: Micikevicius et al. 2018 (arXiv 1710.03740); bfloat16: Kalamkar et al. 2019
//   (arXiv 1905.12322); the split into parameters and reductions as in
//   torch.distributed.fsdp.MixedPrecisionPolicy


// ======== skein/train/module_type.hpp
// Modules by type, as programs name them: a holder (TORCH_MODULE) or the class that it holds.


namespace skein::train::detail {

/// The type of a module: of a holder the one it holds.
template <class Block>
struct module_type {
    using type = Block;
};
template <class Block>
    requires requires { typename Block::ContainedType; }
struct module_type<Block> {
    using type = typename Block::ContainedType;
};

/// Whether the module is of one of these types, or derived from it.
template <class... Types>
[[nodiscard]] bool is_any_of(const torch::nn::Module& m) {
    return ((dynamic_cast<const typename module_type<Types>::type*>(&m) != nullptr) || ...);
}

} // namespace skein::train::detail


// ======== skein/train/precision.hpp, continued
#include <functional>
#include <string>
#include <type_traits>

namespace skein {

// Element types of parameters and sums.
/// IEEE single, the type of masters and optimizer states.
struct f32 {
    static constexpr at::ScalarType type = at::kFloat;
};
/// bfloat16: the exponents of float32 with eight bits of precision. It needs no loss scale.
struct bf16 {
    static constexpr at::ScalarType type = at::kBFloat16;
};
/// IEEE half: five bits of exponent, so small gradients vanish unless the loss is scaled up. The
/// trainer does that by itself (train::loss_scale).
struct f16 {
    static constexpr at::ScalarType type = at::kHalf;
};

namespace train {

/// What a strategy computes and sums in.
struct precision_policy {
    at::ScalarType compute = at::kFloat; ///< of parameters and activations
    at::ScalarType reduce = at::kFloat;  ///< of gradients, while ranks and micro-batches are added
    /// Modules whose parameters stay float32; none: no module.
    std::function<bool(const torch::nn::Module&)> keeps_f32 = {};

    [[nodiscard]] bool is_mixed() const noexcept { return compute != at::kFloat; }
};

/// "bfloat16, sums in float32"; empty when everything is float32.
[[nodiscard]] std::string describe(const precision_policy& policy);

/// What a person should know of this type on this processor; mostly nothing.
[[nodiscard]] std::string precision_notice(const precision_policy& policy);

/// One of precision<> and keep_f32<>.
template <class S>
concept precision_setting = requires(precision_policy& policy) { S::set_precision(policy); };

/// The policy of some settings, of which others are passed over.
template <class... Settings>
[[nodiscard]] precision_policy precision_of() {
    precision_policy policy;
    const auto set = [&]<class S>(std::type_identity<S>) {
        if constexpr (precision_setting<S>) S::set_precision(policy);
    };
    (set(std::type_identity<Settings>{}), ...);
    return policy;
}

} // namespace train

/// Parameters and activations in Compute, gradients added up in Reduce: f32 or the same.
template <class Compute, class Reduce = f32>
struct precision {
    static_assert(std::is_same_v<Compute, f32> || std::is_same_v<Compute, bf16> ||
                      std::is_same_v<Compute, f16>,
                  "precision<> takes f32, bf16 or f16");
    static_assert(std::is_same_v<Reduce, f32> || std::is_same_v<Reduce, Compute>,
                  "gradients are summed in f32 or in the type that they are computed in");
    static void set_precision(train::precision_policy& policy) {
        policy.compute = Compute::type;
        policy.reduce = Reduce::type;
    }
};

/// Parameters of modules of these types (holders or classes) stay float32: norms that keep
/// statistics, a head that has to be exact. They are never dropped between uses.
template <class... Modules>
struct keep_f32 {
    static void set_precision(train::precision_policy& policy) {
        policy.keeps_f32 = [](const torch::nn::Module& m) {
            return train::detail::is_any_of<Modules...>(m);
        };
    }
};

} // namespace skein


// ======== skein/train/detail/precision.ipp
// Bodies of <skein/train/precision.hpp>.


#include <fmt/core.h>

#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace skein::train {

namespace detail {

[[nodiscard]] SKEIN_INLINE const char* name_of(at::ScalarType type) {
    return type == at::kBFloat16 ? "bfloat16" : type == at::kHalf ? "float16" : "float32";
}

/// Whether the processor multiplies bfloat16 numbers itself.
[[nodiscard]] SKEIN_INLINE bool has_bf16_instructions() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16") != 0;
#elif defined(__linux__) && defined(__aarch64__)
    constexpr unsigned long hwcap2_bf16 = 1ul << 14;
    return (::getauxval(AT_HWCAP2) & hwcap2_bf16) != 0;
#else
    return false;
#endif
}

} // namespace detail

SKEIN_INLINE std::string describe(const precision_policy& policy) {
    if (!policy.is_mixed()) return {};
    return fmt::format("{}, sums in {}{}", detail::name_of(policy.compute),
                       detail::name_of(policy.reduce),
                       policy.keeps_f32 ? ", some modules in float32" : "");
}

SKEIN_INLINE std::string precision_notice(const precision_policy& policy) {
    if (policy.compute == at::kHalf)
        return "float16 on a processor is several times slower than float32; bfloat16 needs no "
               "loss "
               "scaling either";
    if (policy.compute == at::kBFloat16 && !detail::has_bf16_instructions())
        return "this processor has no bfloat16 instructions: the run needs less memory than in "
               "float32, and more time";
    return {};
}

} // namespace skein::train


// ======== skein/train/flat.hpp, continued
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace skein::train {

// P elements of a flat buffer, padding included

/// Zeroed storage straight from the system, given back when the last view is gone. Pages cost
/// memory when they are first touched.
[[nodiscard]] at::Tensor make_flat_buffer(std::int64_t elements, at::ScalarType type = at::kFloat);

/// Lets the heap keep what a step frees, for the next step to take: training allocates the same
/// large blocks again and again, and giving them back to the system costs a page fault per 4 KiB
/// each time (measured: 4 % of a step of the GPT example). For the whole process; glibc only.
void keep_freed_memory() noexcept;

/// The sum of the squares, in double and in an order that does not depend on the number of threads.
///   parts  float32, contiguous, on the CPU; all but the last a multiple of flat_alignment long.
///          How one long row of numbers is cut into parts makes no difference to the bits
/// Tensor::norm() adds float32 numbers in a few lanes: over 124 million gradients it is 1.3 % too
/// small.
[[nodiscard]] double squared_norm(std::span<const at::Tensor> parts);
[[nodiscard]] double squared_norm(const at::Tensor& flat_P);

struct cut_parameter; // unit.hpp

/// One trainable parameter inside the flat buffers.
struct flat_segment {
    std::string name;                ///< as in named_parameters(); of tied parameters the first
    at::Tensor parameter;            ///< the module's own tensor
    std::vector<std::int64_t> shape; ///< its own, also while its unit is not gathered
    std::int64_t offset = 0;         ///< elements; a multiple of flat_alignment
    std::int64_t count = 0;          ///< elements of the parameter
    std::int64_t padded = 0;         ///< elements up to the next segment
    std::int64_t row = 1;            ///< elements that one index of dimension 0 spans
    std::size_t unit = 0;
    std::size_t registered = 0;   ///< its number among the trainable parameters of the module
    cut_parameter* cut = nullptr; ///< until it is placed, of one that was built in parts
    std::uint32_t dropped_at = 0; ///< the parameter's version when its unit was dropped
};

/// What is gathered, reduced and dropped together.
struct flat_unit {
    std::string name;                 ///< of the module, or of its first parameter; empty: the root
    std::size_t first = 0, last = 0;  ///< its segments
    flat_range place;                 ///< in the parameters, padding included
    std::vector<flat_range> shards{}; ///< of each sharding rank: adjacent, together `place`
    flat_range own;                   ///< this rank's, also in the parameters
    std::int64_t own_at = 0;          ///< where it begins in the owned layout
    std::int64_t grads_at = 0;        ///< where the unit's gradients begin in the gradient buffer
    at::ScalarType type = at::kFloat; ///< in which the module computes with it
    bool in_parts = false;            ///< every rank has brought the values that it owns
    bool shown = true;                ///< its parameters have their values
};

/// What this rank owns of one parameter: whole rows of it.
struct owned_piece {
    std::size_t segment = 0;
    std::int64_t first = 0;  ///< element of the parameter
    std::int64_t count = 0;  ///< elements, without padding
    std::int64_t padded = 0; ///< with the padding behind it that is owned, too
    std::int64_t flat = 0;   ///< in the parameters
    std::int64_t at =
        0; ///< in the owned layout: optimizer states have this many elements before it
};

/// A tensor that is saved and broadcast but not trained: a frozen parameter or a buffer.
struct fixed_tensor {
    std::string name;
    at::Tensor tensor;
    bool is_buffer = false;
    at::Tensor parameter = {}; ///< the module's own tensor, of a frozen parameter
};

/// How parameters form units, in the order in which a forward pass comes to them.
struct unit_plan {
    std::vector<std::string> names;   ///< of the units
    std::vector<std::size_t> unit_of; ///< by trainable parameter, in order of registration
};

/// A trainable parameter before it is placed.
struct plan_parameter {
    std::string name;                 ///< the first it is registered under
    std::vector<std::string> aliases; ///< the others, of a tied one
    std::int64_t count = 0;           ///< elements
};

/// What a strategy decides about a store.
struct store_options {
    /// Groups parameters; none: all are one unit, the root.
    std::function<unit_plan(torch::nn::Module&, const std::vector<plan_parameter>&)> plan = {};
    int shards = 1; ///< ranks that every unit is cut between
    int shard = 0;  ///< this one's number among them
    /// Where flat buffers of so many elements come from; none: make_flat_buffer().
    std::function<at::Tensor(std::int64_t, at::ScalarType)> parameter_memory = {},
                                                            gradient_memory = {};
    precision_policy precision = {};
    /// The module's values go into the store. False: another rank that shares the memory brings
    /// them.
    bool brings_values = true;
    /// Another rank owns the same rows and is the one that saves them (hybrid sharding).
    bool saved_elsewhere = false;
    /// Nothing is moved and no memory is made: for layout_hash() and units() alone.
    bool only_layout = false;
    /// 0: every unit has a place of its own for its gradients. Else units share so many places in
    /// turn (the root keeps its own), and what is owned is kept apart: see take_gradients().
    int gradient_places = 0;
};

namespace detail {
struct settle_hook;
struct square_sums;
class taken_module;
} // namespace detail

/// The flat parameters and gradients of one module. Not thread-safe.
///
/// A step: expect_gradients(); any number of backward passes; settle_gradients(). The first pass
/// hands over fresh gradients, which are copied into place while they are in the cache; later ones
/// add to the place itself.
class flat_store {
public:
    static constexpr std::int64_t alignment = flat_alignment;

    /// Moves the module's trainable parameters into the store.
    ///   errors: errc::not_supported for a trainable parameter that is not float32 on the CPU, or
    ///   whose memory another tensor sees, of the module or not; errc::invalid_argument when
    ///   nothing is trainable
    explicit flat_store(torch::nn::Module& module, const store_options& options = {});
    flat_store(const flat_store&) = delete;
    flat_store& operator=(const flat_store&) = delete;
    ~flat_store();

    /// Elements of all parameters, padding included.
    [[nodiscard]] std::int64_t size() const noexcept { return size_; }
    /// Trainable elements, without padding.
    [[nodiscard]] std::int64_t trainable() const noexcept { return trainable_; }
    /// Elements that this rank updates, padding included: the size of an optimizer state.
    [[nodiscard]] std::int64_t owned() const noexcept { return owned_; }
    /// Ranks that it is cut between.
    [[nodiscard]] int shards() const noexcept { return shards_; }
    [[nodiscard]] bool is_sharded() const noexcept { return shards_ > 1; }
    [[nodiscard]] bool is_saved_elsewhere() const noexcept { return saved_elsewhere_; }

    /// The parameters in float32. What this rank does not own is there only while they are whole,
    /// and not at all of units that are computed in another type.
    [[nodiscard]] const at::Tensor& params_P() const noexcept { return params_P_; }
    /// What the module computes with: params_P(), or their values in the unit's type.
    [[nodiscard]] const at::Tensor& values_of(const flat_unit& unit) const noexcept {
        return unit.type == at::kFloat ? params_P_ : compute_P_;
    }
    /// The values in that type; undefined when all are float32.
    [[nodiscard]] const at::Tensor& compute_P() const noexcept { return compute_P_; }
    /// Some unit is computed in another type than float32.
    [[nodiscard]] bool is_mixed() const noexcept { return compute_P_.defined(); }
    /// The module's values of what this rank owns become those of params_P(). Of all that there is:
    /// when params_P() is whole, or of the owned parts of units that were built in parts. Of frozen
    /// parameters: after fixed() was written to.
    void cast_owned();
    void cast_all(bool whole_units = true);
    void cast_fixed();
    /// What anybody wrote to values in 16 bits that this rank owns, in whatever way, becomes that
    /// of params_P(); the rest of it keeps its digits. Of frozen parameters: what an operation
    /// wrote.
    ///   always  false: only if an operation has written to a parameter since the last time
    void take_writes(bool always = true);
    /// The module still has the parameters and buffers that were taken over, each where it was put.
    ///   errors  invalid_argument, by name, for one that was exchanged, added or moved since then,
    ///           or written to while its block had no values
    void require_taken() const;
    /// The gradients of all units; with shared places (store_options::gradient_places) those in
    /// use.
    [[nodiscard]] const at::Tensor& grads_P() const noexcept { return grads_P_; }
    [[nodiscard]] const std::vector<flat_unit>& units() const noexcept { return units_; }
    /// In the order of the parameters' buffer.
    [[nodiscard]] const std::vector<flat_segment>& segments() const noexcept { return segments_; }
    [[nodiscard]] const std::vector<fixed_tensor>& fixed() const noexcept { return fixed_; }
    /// Everything this rank owns, in the order of both layouts.
    [[nodiscard]] const std::vector<owned_piece>& pieces() const noexcept { return pieces_; }

    /// All of a segment, in the parameter's shape, in a buffer of the layout of params_P().
    [[nodiscard]] static at::Tensor view_of(const at::Tensor& flat_P, const flat_segment& s);
    /// The gradients of a whole unit.
    [[nodiscard]] at::Tensor grads_of(const flat_unit& unit) const;
    /// The gradients of an owned piece with its padding.
    [[nodiscard]] at::Tensor own_grads(const owned_piece& piece) const;
    /// The sum of the squares of all owned gradients, in an order that does not depend on units.
    [[nodiscard]] double own_squared_norm() const;

    /// Before the first backward pass of a step: what the buffer holds is over.
    ///   errors  those of require_taken(); not_supported, by name, for a parameter that was frozen
    ///           at construction and is trainable now. One that was frozen since then is left out,
    ///           as one that no loss depends on
    void expect_gradients();
    /// Every parameter of the unit has its gradient in place; zero for those no loss depended on.
    void settle_gradients(const flat_unit& unit);
    /// The same for all units.
    void settle_gradients();
    /// With shared places, or gradients that are not summed in float32: own_grads() are kept apart.
    [[nodiscard]] bool keeps_own_grads() const noexcept { return own_grads_.defined(); }
    /// Then the reduced gradients of what is owned move out of the unit's place, and its parameters
    /// have no gradient any more.
    ///   add  to those of the micro-batches before
    void take_gradients(const flat_unit& unit, bool add);
    /// By segment: 1 where some backward pass since expect_gradients() gave this rank a gradient.
    [[nodiscard]] const std::vector<double>& touched() const noexcept { return touched_; }
    /// Called with a segment's number when a backward pass is done with its gradient; one listener.
    void when_final(std::function<void(std::size_t)> call) { final_ = std::move(call); }
    /// Asked, with a segment's number, before its gradient is moved into the unit's place. Refused,
    /// it stays where the backward pass made it, until settle_gradients().
    void ask_before(std::function<bool(std::size_t)> call) { may_settle_ = std::move(call); }

    /// The parameters of a unit show their values, or nothing: an empty tensor that no layer takes.
    void show(const flat_unit& unit, bool visible);

    /// Gradients lie there from now on, zeroed, laid out as before. Between steps.
    ///   from  as store_options::gradient_memory
    ///   saved_elsewhere  as in store_options
    void move_gradients(const std::function<at::Tensor(std::int64_t, at::ScalarType)>& from,
                        bool saved_elsewhere);

    /// The module gets its parameters in memory of its own, with the values they have: the end of a
    /// store whose parameters several ranks share.
    void leave_shared_memory();
    /// The module's parameters are float32 again.
    ///   whole  params_P() is; else what this rank does not own comes from the module's values
    void show_masters(bool whole);

    /// Equal on two ranks exactly when names, shapes, order and what is trainable are equal; it
    /// does not depend on units.
    [[nodiscard]] std::uint64_t layout_hash() const;

private:
    friend struct detail::settle_hook;
    void collect(torch::nn::Module& module, std::vector<plan_parameter>& found);
    void keep_in_float32(torch::nn::Module& module, const store_options& options, unit_plan& plan);
    static void check_cut(const cut_parameter& cut, const std::string& name);
    void place(const unit_plan& plan, const store_options& options);
    void take_cut(flat_segment& s);
    [[nodiscard]] bool is_in_place(const flat_segment& s) const;
    void require_written_whole(const flat_segment& s) const;
    [[nodiscard]] std::uint64_t versions() const;
    void place_gradients(int places);
    void own(const flat_unit& unit);
    void adopt_parameters(bool brings_values);
    void settle(std::size_t i);
    void passed(std::size_t i, bool has_gradient);
    [[nodiscard]] at::Tensor grad_view(const flat_segment& s) const;
    [[nodiscard]] const void* place_of(const flat_segment& s) const;

    std::vector<flat_segment> segments_;
    std::vector<flat_unit> units_;
    std::vector<owned_piece> pieces_;
    // A shared_ptr up to LibTorch 2.14 and an intrusive_ptr since.
    using accumulator = decltype(torch::autograd::impl::grad_accumulator(
        std::declval<const torch::autograd::Variable&>()));
    std::vector<std::pair<accumulator, std::uintptr_t>> hooks_;
    std::function<void(std::size_t)> final_;
    std::function<bool(std::size_t)> may_settle_;
    std::vector<double> touched_;
    std::vector<fixed_tensor> fixed_;
    /// A frozen parameter that is computed with in another type.
    struct cast_tensor {
        std::size_t fixed; // its number
        at::ScalarType type;
        at::Tensor values = {}; // what the module has
        std::uint32_t version = 0;
    };
    std::vector<cast_tensor> cast_;
    std::uint64_t written_ = 0;       // versions() when writes were taken last
    std::optional<std::size_t> lost_; // a segment that was written to while it had no values
    std::shared_ptr<const detail::taken_module> taken_;
    std::int64_t size_ = 0, trainable_ = 0, owned_ = 0, grads_size_ = 0;
    int shards_ = 1;
    bool saved_elsewhere_ = false;
    at::Tensor params_P_, compute_P_; // the second: when some unit is not computed in float32
    at::Tensor grads_P_, own_grads_;  // the second: see keeps_own_grads()
    mutable std::shared_ptr<const detail::square_sums> norm_; // over own_grads(), once asked for
};

namespace detail {
/// Blocks (skein::unit) of the module cast what they are called with to the type that they compute
/// in; `on` false: no more.
void cast_inputs(torch::nn::Module& module, const flat_store& store, bool on);
} // namespace detail

} // namespace skein::train


// ======== skein/train/detail/flat.ipp
// Bodies of <skein/train/flat.hpp>.


// ======== skein/train/detail/flat_taken.ipp
// Bodies of <skein/train/flat.hpp>: what others do to the module while it is trained.


// ======== skein/train/detail/taken_module.hpp
// What a flat store remembers of the module that it has taken over, and what it asks of it before.
// Used by <skein/train/detail/flat.ipp> alone.
//
// Parameters move to other memory when a training begins. Whatever else saw the old memory sees the
// old values from then on, and whatever is put in their place later is trained by nobody: both are
// told, at the beginning and before every step.


#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

[[nodiscard]] inline const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
    const auto& impl = *tensor.unsafeGetTensorImpl();
    return impl.has_storage() ? impl.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

/// Writes by an operation of LibTorch raise it; not those through data() or an address.
[[nodiscard]] inline std::uint32_t version_of(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

// ---- before -------------------------------------------------------------------------------------

/// Memory of the flat stores of this process, while something lies in it: after a training the
/// parameters of a module share one storage, and nobody can tell which other module has a part of
/// it.
class store_memory {
public:
    static void add(const at::Tensor& flat) {
        auto& all = instance();
        const std::lock_guard lock(all.guard_);
        std::erase_if(all.known_, [](const auto& each) { return each.expired(); });
        all.known_.push_back(flat.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl());
    }
    [[nodiscard]] static bool holds(const c10::StorageImpl* storage) {
        auto& all = instance();
        const std::lock_guard lock(all.guard_);
        return std::ranges::any_of(
            all.known_, [&](const auto& each) { return each._unsafe_get_target() == storage; });
    }

private:
    static store_memory& instance() {
        static store_memory all;
        return all;
    }
    std::mutex guard_;
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> known_;
};

/// Tensors of a module in one storage.
struct storage_users {
    struct user {
        std::string_view name;
        const at::Tensor* tensor;
        bool trained;
    };
    std::vector<user> users;

    [[nodiscard]] bool has_trained() const {
        return std::ranges::any_of(users, [](const user& u) { return u.trained; });
    }

    void refuse_overlap() {
        const auto begin = [](const user& u) {
            return static_cast<const std::byte*>(u.tensor->const_data_ptr());
        };
        std::ranges::sort(users, {}, begin);
        for (std::size_t i = 1; i < users.size(); ++i) {
            const auto &a = users[i - 1], &b = users[i];
            if (!a.trained && !b.trained) continue;
            const auto status = at::get_overlap_status(*a.tensor, *b.tensor);
            if (status != at::MemOverlapStatus::Full && status != at::MemOverlapStatus::Partial)
                continue;
            throw error(
                errc::not_supported,
                fmt::format("not supported: {} and {} share memory but are different tensors",
                            std::min(a.name, b.name), std::max(a.name, b.name)))
                .with_hint("register one tensor in both places, or compute the one from the other "
                           "in forward()");
        }
    }

    void refuse_others(const c10::StorageImpl* storage, std::size_t uses) const {
        if (uses <= users.size() || store_memory::holds(storage)) return;
        const auto found = std::ranges::find_if(users, [](const user& u) { return u.trained; });
        throw error(errc::not_supported,
                    fmt::format("not supported: the memory of parameter {} is held by {} other "
                                "tensor{} when the training begins: they would keep its old values",
                                found->name, uses - users.size(),
                                uses - users.size() == 1 ? "" : "s"))
            .with_hint(
                "take views of a parameter in forward(), and let go of what was kept before "
                "fit() or open(): views, detach() (keep a clone()), losses, an open archive");
    }
};

/// Throws by name when something else sees the memory of a parameter that is going to move.
inline void refuse_aliases(const std::vector<flat_segment>& segments,
                           const std::vector<fixed_tensor>& fixed) {
    std::unordered_map<const c10::StorageImpl*, storage_users> by_storage;
    std::unordered_set<const void*> seen;
    const auto add = [&](const std::string& name, const at::Tensor& tensor, bool trained) {
        const auto* const storage = storage_of(tensor);
        if (storage == nullptr || tensor.numel() == 0) return;
        if (!seen.insert(tensor.unsafeGetTensorImpl()).second) return;
        by_storage[storage].users.push_back({name, &tensor, trained});
    };
    for (const auto& s : segments)
        if (s.cut == nullptr) add(s.name, s.parameter, true);
    for (const auto& f : fixed) add(f.name, f.tensor, false);
    for (auto& [storage, in] : by_storage) {
        if (!in.has_trained()) continue;
        in.refuse_overlap();
        in.refuse_others(storage,
                         in.users[0].tensor->unsafeGetTensorImpl()->unsafe_storage().use_count());
    }
}

/// LibTorch's norms take statistics and parameters of one type, or a 16-bit input with both in
/// float32.
inline void refuse_norm(const torch::nn::Module& module, const std::string& name,
                        const precision_policy& precision) {
    const auto tracks = [&](const auto* norm) {
        return norm != nullptr && norm->weight.defined() && norm->running_mean.defined();
    };
    const bool refused = tracks(dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module)) ||
                         tracks(dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module)) ||
                         tracks(dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module)) ||
                         tracks(dynamic_cast<const torch::nn::InstanceNorm1dImpl*>(&module)) ||
                         tracks(dynamic_cast<const torch::nn::InstanceNorm2dImpl*>(&module)) ||
                         tracks(dynamic_cast<const torch::nn::InstanceNorm3dImpl*>(&module));
    if (!refused || (precision.keeps_f32 && precision.keeps_f32(module))) return;
    auto type = module.name(); // "torch::nn::BatchNorm2dImpl"
    if (type.ends_with("Impl")) type.resize(type.size() - 4);
    throw error(errc::invalid_argument,
                fmt::format("{} keeps running statistics in float32 and cannot compute with "
                            "parameters of 16 bits",
                            type))
        .with_where(name)
        .with_hint(fmt::format("add skein::keep_f32<{}> to the settings of the strategy, beside "
                               "precision<>",
                               type));
}

// ---- after --------------------------------------------------------------------------------------

/// Which tensors a module has registered, in order.
class taken_module {
public:
    /// The module outlives what asks; its tensors are held elsewhere, so their addresses are not
    /// used again.
    explicit taken_module(torch::nn::Module& module)
        : module_(&module), tensors_(tensors()), names_(names()) {}

    /// Empty, or what has changed.
    [[nodiscard]] std::string difference() const {
        if (is_same()) return {};
        const auto now = names();
        for (const auto& [name, tensor] : names_) {
            const auto found = now.find(name);
            if (found == now.end()) return name + " is not in the model any more";
            if (found->second != tensor) return name + " was exchanged";
        }
        for (const auto& [name, tensor] : now)
            if (!names_.contains(name)) return name + " was added";
        return "its tensors were registered in another order";
    }

private:
    /// A door to what a module keeps for those who inherit from it: named_parameters() copies every
    /// name.
    struct door : torch::nn::Module {
        static const auto& parameters_of(const torch::nn::Module& module) {
            return module.*(&door::parameters_);
        }
    };

    template <class Visit>
    void each_tensor_of(const Visit& visit) const {
        module_->apply([&](torch::nn::Module& each) {
            for (const auto& item : door::parameters_of(each)) visit(item.value());
            for (const auto& item : each.named_buffers(/*recurse=*/false)) visit(item.value());
        });
    }
    [[nodiscard]] bool is_same() const {
        std::size_t at = 0;
        bool same = true;
        each_tensor_of([&](const at::Tensor& t) {
            same = same && at < tensors_.size() && tensors_[at] == t.unsafeGetTensorImpl();
            at += 1;
        });
        return same && at == tensors_.size();
    }
    [[nodiscard]] std::vector<const void*> tensors() const {
        std::vector<const void*> all;
        each_tensor_of([&](const at::Tensor& t) { all.push_back(t.unsafeGetTensorImpl()); });
        return all;
    }
    [[nodiscard]] std::map<std::string, const void*> names() const {
        std::map<std::string, const void*> all;
        for (const auto& item : module_->named_parameters(true))
            all.emplace("parameter " + item.key(), item.value().unsafeGetTensorImpl());
        for (const auto& item : module_->named_buffers(true))
            all.emplace("buffer " + item.key(), item.value().unsafeGetTensorImpl());
        return all;
    }

    torch::nn::Module* module_;
    std::vector<const void*> tensors_;
    std::map<std::string, const void*> names_;
};

/// Masters become what was written to their values in 16 bits; the others keep their digits.
///   master_P, values_P  dense, of one layout; the values were cast from the masters when nobody
///                       had written
inline void take_written(const at::Tensor& master_P, const at::Tensor& values_P) {
    constexpr std::int64_t most = std::int64_t{1} << 15; // an operation on so many takes one thread
    const auto count = master_P.numel();
    at::parallel_for(0, (count + most - 1) / most, 16, [&](std::int64_t first, std::int64_t last) {
        const auto cast = at::empty({most}, values_P.options());
        for (auto from = first * most; from < std::min(count, last * most); from += most) {
            const auto n = std::min(most, count - from);
            const auto again = cast.narrow(0, 0, n);
            const auto master = master_P.narrow(0, from, n);
            const auto values = values_P.narrow(0, from, n);
            again.copy_(master);
            if (std::memcmp(again.const_data_ptr(), values.const_data_ptr(), values.nbytes()) != 0)
                master.copy_(at::where(again.eq(values), master, values.to(at::kFloat)));
        }
    });
}

} // namespace skein::train::detail


// ======== skein/train/detail/flat_taken.ipp, continued
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

// ---- written to ---------------------------------------------------------------------------------

SKEIN_INLINE std::uint64_t flat_store::versions() const {
    std::uint64_t sum = 0;
    for (const auto& s : segments_) sum += detail::version_of(s.parameter);
    return sum;
}

SKEIN_INLINE void flat_store::take_writes(bool always) {
    if (!is_mixed()) return;
    at::NoGradGuard no_grad;
    const auto now = versions();
    if (always || now != written_)
        for (const auto& u : units_)
            if (u.type != at::kFloat)
                detail::take_written(params_P_.narrow(0, u.own.begin, u.own.size()),
                                     compute_P_.narrow(0, u.own.begin, u.own.size()));
    written_ = now;
    for (auto& each : cast_) {
        const auto& f = fixed_[each.fixed];
        if (std::exchange(each.version, detail::version_of(f.parameter)) == each.version) continue;
        const auto values = f.parameter.detach();
        const auto kept = f.tensor.to(each.type).eq(values);
        f.tensor.copy_(at::where(kept, f.tensor, values.to(at::kFloat)));
    }
}

// ---- the module is the one that was taken -------------------------------------------------------

SKEIN_INLINE bool flat_store::is_in_place(const flat_segment& s) const {
    const auto& unit = units_[s.unit];
    const auto& values = values_of(unit);
    const auto& impl = *s.parameter.unsafeGetTensorImpl();
    if (detail::storage_of(s.parameter) != detail::storage_of(values) ||
        impl.dtype() != values.dtype())
        return false;
    if (!unit.shown) return impl.numel() == 0;
    return impl.storage_offset() == values.storage_offset() + s.offset && impl.is_contiguous() &&
           impl.sizes() == at::IntArrayRef(s.shape);
}

SKEIN_INLINE void flat_store::require_written_whole(const flat_segment& s) const {
    const bool lost = lost_ && &segments_[*lost_] == &s;
    if (!lost && (units_[s.unit].shown || detail::version_of(s.parameter) == s.dropped_at)) return;
    throw error(errc::invalid_argument,
                fmt::format("parameter {} was written to while its block had no values: it is "
                            "an empty tensor outside of the block's forward and backward",
                            s.name))
        .with_hint("write to it in the block's forward(), or choose Zero2 or DDP, under which the "
                   "parameters are always there");
}

SKEIN_INLINE void flat_store::require_taken() const {
    const auto refuse = [](const std::string& what) {
        throw error(errc::invalid_argument,
                    fmt::format("the model is not the one that the training began with: {}", what))
            .with_hint("load, convert and change a model before fit() or open(); later write to "
                       "its parameters in place (copy_() under NoGradGuard), or open another "
                       "session");
    };
    if (const auto what = taken_->difference(); !what.empty()) refuse(what);
    for (const auto& s : segments_) {
        if (!is_in_place(s)) refuse(fmt::format("parameter {} was moved to other memory", s.name));
        require_written_whole(s);
    }
    for (const auto& each : cast_)
        if (const auto& f = fixed_[each.fixed];
            detail::storage_of(f.parameter) != detail::storage_of(each.values))
            refuse(fmt::format("frozen parameter {} was moved to other memory", f.name));
}

} // namespace skein::train

// ======== skein/train/detail/square_sums.hpp
// The sum of the squares of numbers that lie in many places, in one order.


#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

namespace skein::train::detail {

/// Numbers of one row that is cut into parts, summed piece by piece: a piece begins in some part
/// and ends in that or a later one. Sixteen lanes, each a sum of its own, so that the vector unit
/// can work.
struct square_sums {
    static constexpr std::int64_t piece = 1 << 16, lanes = flat_alignment;

    std::vector<const float*> parts;
    std::vector<std::int64_t> starts; // of the parts, and the end

    /// The tensors must outlive it.
    explicit square_sums(std::span<const at::Tensor> all) : starts{0} {
        for (const auto& part : all) {
            parts.push_back(static_cast<const float*>(part.const_data_ptr()));
            starts.push_back(starts.back() + part.numel());
        }
    }

    /// Fetches the row a cache line at a time. Parts lie anywhere, in a store last before first,
    /// and short ones are over before the processor sees that they are read in order: a block of
    /// them is fetched from its last part to its first.
    struct cursor {
        static constexpr std::int64_t block = 1 << 14;
        static constexpr std::int64_t lead = (block + 256) / lanes; // cache lines

        const square_sums& of;
        std::size_t begin, end, part; // of the block, and in it
        std::int64_t at = 0;

        cursor(const square_sums& all, std::size_t first) : of(all) {
            start(first);
            for (std::int64_t i = 0; i < lead; ++i) next();
        }
        void start(std::size_t first) {
            begin = end = first;
            while (end < of.parts.size() && of.starts[end] - of.starts[begin] < block) end += 1;
            part = end - 1;
        }
        void next() {
            if (begin == end) return;
            __builtin_prefetch(of.parts[part] + at, /*write=*/0, /*locality=*/1);
            at += lanes;
            if (at < of.starts[part + 1] - of.starts[part]) return;
            at = 0;
            if (part == begin)
                start(end);
            else
                part -= 1;
        }
    };

    [[nodiscard]] std::size_t part_at(std::int64_t element) const {
        return static_cast<std::size_t>(std::ranges::upper_bound(starts, element) - starts.begin() -
                                        1);
    }

    [[nodiscard]] double of_piece(std::int64_t number, cursor* ahead) const {
        const auto end = std::min((number + 1) * piece, starts.back());
        double lane[lanes] = {};
        auto at = number * piece;
        for (auto p = part_at(at); at < end; ++p) {
            const auto upto = std::min(end, starts[p + 1]);
            add(parts[p] + (at - starts[p]), upto - at, lane, ahead);
            at = upto;
        }
        double sum = 0;
        for (const double part : lane) sum += part;
        return sum;
    }

    [[nodiscard]] double of_all() const {
        std::vector<double> sums(static_cast<std::size_t>((starts.back() + piece - 1) / piece));
        const bool is_short = starts.back() < std::ssize(parts) * cursor::block;
        at::parallel_for(0, static_cast<std::int64_t>(sums.size()), 1,
                         [&](std::int64_t first, std::int64_t last) {
                             std::optional<cursor> ahead;
                             if (is_short) ahead.emplace(*this, part_at(first * piece));
                             for (auto s = first; s < last; ++s)
                                 sums[static_cast<std::size_t>(s)] =
                                     of_piece(s, ahead ? &*ahead : nullptr);
                         });
        double sum = 0;
        for (const double part : sums) sum += part;
        return sum;
    }

    static void add(const float* x, std::int64_t count, double* lane, cursor* ahead) {
        std::int64_t i = 0;
        for (; i + lanes <= count; i += lanes) {
            if (ahead != nullptr) ahead->next();
            for (std::int64_t k = 0; k < lanes; ++k) {
                const double v = x[i + k];
                lane[k] += v * v;
            }
        }
        for (; i < count; ++i) lane[0] += double(x[i]) * double(x[i]);
    }
};

} // namespace skein::train::detail


// ======== skein/train/detail/flat.ipp, continued
#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include <malloc.h>
#include <sys/mman.h>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE at::Tensor make_flat_buffer(std::int64_t elements, at::ScalarType type) {
    const auto bytes =
        static_cast<std::size_t>(elements > 0 ? elements : 1) * c10::elementSize(type);
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        throw error(errc::exhausted, fmt::format("no memory for a flat buffer of {} bytes", bytes))
            .with_hint("use a smaller model or a machine with more memory");
    ::madvise(memory, bytes, MADV_HUGEPAGE); // a wish: fewer page faults and TLB misses
    return at::from_blob(
        memory, {elements}, [bytes](void* p) { ::munmap(p, bytes); },
        at::TensorOptions().dtype(type));
}

SKEIN_INLINE void keep_freed_memory() noexcept {
#if defined(__GLIBC__)
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (::mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0)
        ::mallopt(M_MMAP_THRESHOLD, 32 << 20); // older glibc
#endif
}

SKEIN_INLINE double squared_norm(std::span<const at::Tensor> parts) {
    return detail::square_sums(parts).of_all();
}

SKEIN_INLINE double squared_norm(const at::Tensor& flat_P) {
    return squared_norm(std::span(&flat_P, 1));
}

namespace detail {
/// Runs after each parameter's gradient has been accumulated. The only hook on its node, so that
/// what has to follow (when_final) does not depend on the order in which hooks were registered.
struct settle_hook : torch::autograd::FunctionPostHook {
    settle_hook(flat_store& store, std::size_t segment) : store(&store), segment(segment) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& outputs,
        const torch::autograd::variable_list& gradients) override {
        store->passed(segment, !gradients.empty() && gradients[0].defined());
        return outputs;
    }
    flat_store* store;
    std::size_t segment;
};
} // namespace detail

SKEIN_INLINE flat_store::flat_store(torch::nn::Module& module, const store_options& options)
    : shards_(options.shards), saved_elsewhere_(options.saved_elsewhere) {
    at::NoGradGuard no_grad;
    std::vector<plan_parameter> found;
    collect(module, found);
    detail::refuse_aliases(segments_, fixed_);
    unit_plan plan{{""}, std::vector<std::size_t>(found.size(), 0)};
    if (options.plan) plan = options.plan(module, found);
    if (options.precision.is_mixed()) {
        for (const auto& item : module.named_modules(std::string(), /*include_self=*/false))
            detail::refuse_norm(*item.value(), item.key(), options.precision);
        for (std::size_t i = 0; i < fixed_.size(); ++i)
            if (!fixed_[i].is_buffer && fixed_[i].tensor.scalar_type() == at::kFloat)
                cast_.push_back({i, options.precision.compute});
    }
    if (options.precision.keeps_f32) keep_in_float32(module, options, plan);
    place(plan, options);
    place_gradients(options.gradient_places);
    if (options.only_layout) return;

    const auto& precision = options.precision;
    const auto make = [](const auto& from, std::int64_t elements, at::ScalarType type) {
        return from ? from(elements, type) : make_flat_buffer(elements, type);
    };
    params_P_ = make(options.parameter_memory, size_, at::kFloat);
    if (precision.is_mixed()) compute_P_ = make(options.parameter_memory, size_, precision.compute);
    for (const auto& flat : {params_P_, compute_P_})
        if (flat.defined()) detail::store_memory::add(flat);
    grads_P_ = make(options.gradient_memory, grads_size_, precision.reduce);
    if (options.gradient_places > 0 || precision.reduce != at::kFloat)
        own_grads_ = make_flat_buffer(owned_);
    adopt_parameters(options.brings_values);
    detail::forget_cuts(module);
    if (options.gradient_places == 0)
        for (auto& s : segments_) s.parameter.mutable_grad() = grad_view(s);
    touched_.assign(segments_.size(), 0.0);
    for (std::size_t i = 0; i < segments_.size(); ++i) {
        auto node = torch::autograd::impl::grad_accumulator(segments_[i].parameter);
        const auto key = node->add_post_hook(std::make_unique<detail::settle_hook>(*this, i));
        hooks_.emplace_back(std::move(node), key);
    }
    taken_ = std::make_shared<const detail::taken_module>(module);
    written_ = versions();
}

SKEIN_INLINE flat_store::~flat_store() {
    for (auto& [node, key] : hooks_) node->del_post_hook(key);
}

// ---- layout -------------------------------------------------------------------------------------

SKEIN_INLINE void flat_store::collect(torch::nn::Module& module,
                                      std::vector<plan_parameter>& found) {
    std::unordered_map<const void*, std::size_t> seen;   // tensor objects: tied parameters
    std::unordered_map<const void*, std::string> memory; // data pointers: hidden aliases
    constexpr auto frozen = static_cast<std::size_t>(-1);
    for (const auto& each : module.modules(/*include_self=*/false))
        if (const auto* mark = dynamic_cast<const unit_mark*>(each.get()); mark && mark->is_lost())
            throw error(errc::invalid_argument,
                        "the parameters of a block were lost with a training that failed")
                .with_where(type_name(typeid(*mark)))
                .with_hint("build the model anew, or load a checkpoint into a new one");
    const auto cut = detail::cut_parameters(module);
    const auto named = module.named_parameters(true);
    for (const auto& item : named) {
        const auto& p = item.value();
        if (!p.defined()) continue;
        const auto [known, fresh] =
            seen.emplace(p.unsafeGetTensorImpl(), p.requires_grad() ? segments_.size() : frozen);
        if (!fresh) {
            if (known->second != frozen) found[known->second].aliases.push_back(item.key());
            continue;
        }
        const auto part = cut.find(p.unsafeGetTensorImpl());
        if (part != cut.end()) check_cut(*part->second, item.key());
        if (!p.requires_grad()) {
            fixed_.push_back({item.key(), p, false, p});
            continue;
        }
        if (p.scalar_type() != at::kFloat || !p.device().is_cpu())
            throw error(errc::not_supported,
                        fmt::format("not supported: trainable parameter {} of type {} on {}",
                                    item.key(), c10::toString(p.scalar_type()), p.device().str()))
                .with_hint("this version trains float32 parameters on the CPU");
        const auto shape = part != cut.end() ? part->second->shape : p.sizes().vec();
        const auto count = c10::multiply_integers(shape);
        const auto [other, first] = memory.emplace(p.const_data_ptr(), item.key());
        if (p.numel() > 0 && !first)
            throw error(
                errc::not_supported,
                fmt::format("not supported: {} and {} share memory but are different tensors",
                            other->second, item.key()))
                .with_hint("register one tensor in both places");
        segments_.push_back({.name = item.key(),
                             .parameter = p,
                             .shape = shape,
                             .count = count,
                             .padded = padded_count(count),
                             .row = std::max<std::int64_t>(
                                 1, !shape.empty() && shape[0] > 0 ? count / shape[0] : 1),
                             .registered = segments_.size(),
                             .cut = part != cut.end() ? part->second : nullptr});
        found.push_back({item.key(), {}, count});
        trainable_ += count;
    }
    for (const auto& item : module.named_buffers(true))
        if (item.value().defined()) fixed_.push_back({item.key(), item.value(), true});
    if (segments_.empty())
        throw error(errc::invalid_argument, "the model has no trainable parameter")
            .with_hint("is every parameter frozen, or was no submodule registered?");
}

/// A parameter that was cut up when its block was built is as it was then.
SKEIN_INLINE void flat_store::check_cut(const cut_parameter& cut, const std::string& name) {
    if (!cut.parameter.requires_grad())
        throw error(errc::not_supported,
                    "not supported: a parameter that was frozen after its block was built in parts")
            .with_where(name)
            .with_hint("freeze it in the block's constructor, or build the model without build()");
    if (cut.parameter._version() != cut.version || cut.parameter.numel() != 0)
        throw error(errc::invalid_argument,
                    "a parameter was written to after its block was built in parts")
            .with_where(name)
            .with_hint("draw or load its values in the block's constructor, or with "
                       "train::for_each_parameter()");
}

/// Parameters of modules that stay in float32 become a unit of their own, without a name as the
/// root: the last to be reduced and never dropped.
SKEIN_INLINE void flat_store::keep_in_float32(torch::nn::Module& module,
                                              const store_options& options, unit_plan& plan) {
    std::vector<std::string> prefixes;
    for (const auto& item : module.named_modules(std::string(), /*include_self=*/false))
        if (options.precision.keeps_f32(*item.value())) prefixes.push_back(item.key() + ".");
    if (prefixes.empty())
        throw error(errc::invalid_argument, "keep_f32<> matches no module of the model")
            .with_hint("give it the types of modules that there are, or leave it out");
    const auto is_kept = [&](const std::string& name) {
        return std::ranges::any_of(prefixes, [&](const auto& p) { return name.starts_with(p); });
    };
    for (auto& unit : plan.unit_of) unit += 1;
    plan.names.insert(plan.names.begin(), "");
    for (const auto& s : segments_)
        if (is_kept(s.name)) plan.unit_of[s.registered] = 0;
    std::erase_if(cast_, [&](const auto& each) { return is_kept(fixed_[each.fixed].name); });
}

/// Sorts the segments by unit and gives everything its place.
SKEIN_INLINE void flat_store::place(const unit_plan& plan, const store_options& options) {
    SKEIN_CHECK(plan.unit_of.size() == segments_.size(), "a plan for {} of {} parameters",
                plan.unit_of.size(), segments_.size());
    for (auto& s : segments_) s.unit = plan.unit_of[s.registered];
    std::ranges::stable_sort(segments_, {}, &flat_segment::unit);
    for (std::size_t i = 0; i < segments_.size();) {
        flat_unit unit;
        unit.name = plan.names[segments_[i].unit];
        unit.first = i;
        unit.place.begin = size_;
        std::vector<placed_parameter> placed;
        const auto number = segments_[i].unit;
        for (; i < segments_.size() && segments_[i].unit == number; ++i) {
            auto& s = segments_[i];
            s.offset = size_;
            s.unit = units_.size();
            placed.push_back({s.offset, s.count, s.row});
            size_ += s.padded;
        }
        unit.last = i;
        unit.place.end = size_;
        const bool kept = options.precision.keeps_f32 && number == 0;
        unit.type = kept ? at::kFloat : options.precision.compute;
        unit.shards = cut_unit(placed, unit.place, options.shards);
        unit.own = unit.shards[static_cast<std::size_t>(options.shard)];
        unit.own_at = owned_;
        owned_ += unit.own.size();
        own(unit);
        units_.push_back(std::move(unit));
    }
}

SKEIN_INLINE void flat_store::own(const flat_unit& unit) {
    for (auto i = unit.first; i < unit.last; ++i) {
        const auto& s = segments_[i];
        const auto mine = overlap({s.offset, s.offset + s.padded}, unit.own);
        if (mine.empty()) continue;
        const auto first = mine.begin - s.offset;
        pieces_.push_back({.segment = i,
                           .first = first,
                           .count = std::min(mine.end - s.offset, s.count) - first,
                           .padded = mine.size(),
                           .flat = mine.begin,
                           .at = unit.own_at + (mine.begin - unit.own.begin)});
    }
}

/// The root, which lasts for the whole step, keeps a place of its own; the others take turns.
SKEIN_INLINE void flat_store::place_gradients(int places) {
    if (places == 0) {
        for (auto& u : units_) u.grads_at = u.place.begin;
        grads_size_ = size_;
        return;
    }
    std::int64_t most = 0, own_places = 0;
    for (auto& u : units_) {
        if (u.name.empty()) {
            u.grads_at = own_places;
            own_places += u.place.size();
        } else {
            most = std::max(most, u.place.size());
        }
    }
    std::int64_t turn = 0;
    for (auto& u : units_)
        if (!u.name.empty()) u.grads_at = own_places + most * (turn++ % places);
    grads_size_ = own_places + most * std::min<std::int64_t>(turn, places);
}

SKEIN_INLINE void flat_store::adopt_parameters(bool brings_values) {
    for (auto& s : segments_) {
        if (s.cut != nullptr)
            take_cut(s);
        else if (brings_values)
            view_of(params_P_, s).copy_(s.parameter);
        s.parameter.set_data(view_of(values_of(units_[s.unit]), s));
    }
    if (brings_values || std::ranges::any_of(units_, &flat_unit::in_parts)) cast_all(brings_values);
    for (auto& each : cast_) { // a float32 twin keeps the values
        auto& f = fixed_[each.fixed];
        f.tensor = f.parameter.detach();
        each.values = at::empty_like(f.tensor, each.type);
        f.parameter.set_data(each.values);
    }
    cast_fixed();
}

SKEIN_INLINE void flat_store::cast_fixed() {
    at::NoGradGuard no_grad;
    for (auto& each : cast_) {
        const auto& f = fixed_[each.fixed];
        f.parameter.detach().copy_(f.tensor);
        each.version = detail::version_of(f.parameter);
    }
}

/// Every rank brings what it kept.
SKEIN_INLINE void flat_store::take_cut(flat_segment& s) {
    auto& cut = *std::exchange(s.cut, nullptr);
    const auto own = overlap({s.offset, s.offset + s.count}, units_[s.unit].own);
    if (own.size() != cut.count || (cut.count > 0 && own.begin - s.offset != cut.first))
        throw error(errc::not_supported,
                    "not supported: a block that was built in parts for another layout")
            .with_where(s.name)
            .with_hint("train it with the trainer that built it; a weight that is tied to another "
                       "block's is to be tied in the constructor of a block around both");
    params_P_.narrow(0, own.begin, own.size()).copy_(cut.values);
    cut.values.reset();
    units_[s.unit].in_parts = true;
}

SKEIN_INLINE void flat_store::cast_owned() {
    at::NoGradGuard no_grad;
    for (const auto& u : units_)
        if (u.type != at::kFloat)
            compute_P_.narrow(0, u.own.begin, u.own.size())
                .copy_(params_P_.narrow(0, u.own.begin, u.own.size()));
}

SKEIN_INLINE void flat_store::cast_all(bool whole_units) {
    at::NoGradGuard no_grad;
    for (const auto& u : units_) {
        const auto there = u.in_parts ? u.own : u.place;
        if (u.type != at::kFloat && (u.in_parts || whole_units))
            compute_P_.narrow(0, there.begin, there.size())
                .copy_(params_P_.narrow(0, there.begin, there.size()));
    }
    cast_fixed();
}

SKEIN_INLINE at::Tensor flat_store::view_of(const at::Tensor& flat_P, const flat_segment& s) {
    return flat_P.narrow(0, s.offset, s.count).view(s.shape);
}

SKEIN_INLINE void flat_store::show(const flat_unit& unit, bool visible) {
    at::NoGradGuard no_grad;
    for (auto i = unit.first; i < unit.last; ++i) {
        auto& s = segments_[i];
        const auto& values = values_of(unit);
        const auto version = detail::version_of(s.parameter);
        if (!unit.shown && version != s.dropped_at) lost_ = i; // told at the next step
        s.dropped_at = version;
        s.parameter.set_data(visible ? view_of(values, s) : values.narrow(0, 0, 0));
    }
    units_[segments_[unit.first].unit].shown = visible;
}

SKEIN_INLINE void flat_store::leave_shared_memory() {
    at::NoGradGuard no_grad;
    auto own = make_flat_buffer(size_);
    own.copy_(params_P_);
    params_P_ = std::move(own);
    detail::store_memory::add(params_P_);
    show_masters(/*whole=*/true);
}

SKEIN_INLINE void flat_store::show_masters(bool whole) {
    at::NoGradGuard no_grad;
    for (auto& u : units_) {
        if (u.type != at::kFloat && !whole)
            for (const auto& [begin, end] :
                 {flat_range{u.place.begin, u.own.begin}, flat_range{u.own.end, u.place.end}})
                params_P_.narrow(0, begin, end - begin)
                    .copy_(compute_P_.narrow(0, begin, end - begin));
        u.type = at::kFloat;
        show(u, true);
    }
    compute_P_ = at::Tensor();
    for (const auto& each : std::exchange(cast_, {}))
        fixed_[each.fixed].parameter.set_data(fixed_[each.fixed].tensor);
}

SKEIN_INLINE std::uint64_t flat_store::layout_hash() const {
    fnv1a h;
    const auto add = [&h](const std::string& name, at::ScalarType type,
                          std::span<const std::int64_t> shape) {
        h.number(name.size());
        h.text(name);
        h.number(static_cast<std::uint64_t>(type));
        for (auto n : shape) h.number(static_cast<std::uint64_t>(n));
    };
    std::vector<const flat_segment*> ordered(segments_.size());
    for (const auto& s : segments_) ordered[segments_.size() - 1 - s.registered] = &s;
    h.number(segments_.size());
    for (const auto* s : ordered) add(s->name, at::kFloat, s->shape); // whatever it is computed in
    for (const auto& f : fixed_) add(f.name, f.tensor.scalar_type(), f.tensor.sizes());
    return h.value();
}

// ---- gradients ----------------------------------------------------------------------------------

SKEIN_INLINE at::Tensor flat_store::grads_of(const flat_unit& unit) const {
    return grads_P_.narrow(0, unit.grads_at, unit.place.size());
}

SKEIN_INLINE at::Tensor flat_store::grad_view(const flat_segment& s) const {
    const auto& u = units_[s.unit];
    return grads_P_.narrow(0, u.grads_at + (s.offset - u.place.begin), s.count).view(s.shape);
}

SKEIN_INLINE const void* flat_store::place_of(const flat_segment& s) const {
    const auto& u = units_[s.unit];
    return static_cast<const std::byte*>(grads_P_.const_data_ptr()) +
           (u.grads_at + (s.offset - u.place.begin)) *
               static_cast<std::int64_t>(grads_P_.element_size());
}

SKEIN_INLINE at::Tensor flat_store::own_grads(const owned_piece& piece) const {
    if (own_grads_.defined()) return own_grads_.narrow(0, piece.at, piece.padded);
    const auto& u = units_[segments_[piece.segment].unit];
    return grads_P_.narrow(0, u.grads_at + (piece.flat - u.place.begin), piece.padded);
}

SKEIN_INLINE double flat_store::own_squared_norm() const {
    if (!norm_) { // once: making a view costs as much as adding a thousand numbers
        std::vector<std::pair<std::size_t, at::Tensor>> ordered;
        for (const auto& piece : pieces_)
            ordered.emplace_back(segments_[piece.segment].registered, own_grads(piece));
        std::ranges::sort(ordered, std::greater<>(), [](const auto& each) { return each.first; });
        std::vector<at::Tensor> parts;
        for (auto& [registered, part] : ordered) parts.push_back(std::move(part));
        norm_ = std::make_shared<const detail::square_sums>(parts);
    }
    return norm_->of_all();
}

SKEIN_INLINE void flat_store::move_gradients(
    const std::function<at::Tensor(std::int64_t, at::ScalarType)>& from, bool saved_elsewhere) {
    const auto type = grads_P_.scalar_type();
    auto next = from ? from(grads_size_, type) : make_flat_buffer(grads_size_, type);
    for (auto& s : segments_) s.parameter.mutable_grad().reset();
    norm_.reset(); // it looks into the old ones
    grads_P_ = std::move(next);
    saved_elsewhere_ = saved_elsewhere;
}

SKEIN_INLINE void flat_store::expect_gradients() {
    require_taken();
    take_writes(/*always=*/false);
    for (auto& s : segments_) s.parameter.mutable_grad().reset();
    touched_.assign(segments_.size(), 0.0);
    for (const auto& f : fixed_)
        if (!f.is_buffer && f.parameter.requires_grad())
            throw error(
                errc::not_supported,
                fmt::format("not supported: parameter {} was frozen when the training began "
                            "and is trainable now",
                            f.name))
                .with_hint("unfreeze it before fit(), or start another fit()");
}

SKEIN_INLINE void flat_store::settle_gradients(const flat_unit& unit) {
    for (auto i = unit.first; i < unit.last; ++i) settle(i);
}

SKEIN_INLINE void flat_store::settle_gradients() {
    for (const auto& u : units_) settle_gradients(u);
}

SKEIN_INLINE void flat_store::take_gradients(const flat_unit& unit, bool add) {
    at::NoGradGuard no_grad;
    for (auto i = unit.first; i < unit.last; ++i) segments_[i].parameter.mutable_grad().reset();
    if (unit.own.empty()) return;
    const auto reduced =
        grads_P_.narrow(0, unit.grads_at + (unit.own.begin - unit.place.begin), unit.own.size());
    auto kept = own_grads_.narrow(0, unit.own_at, unit.own.size());
    if (add)
        kept.add_(reduced);
    else
        kept.copy_(reduced);
}

SKEIN_INLINE void flat_store::passed(std::size_t i, bool has_gradient) {
    if (has_gradient) touched_[i] = 1.0;
    if (!may_settle_ || may_settle_(i)) settle(i);
    if (final_) final_(i);
}

SKEIN_INLINE void flat_store::settle(std::size_t i) {
    at::NoGradGuard no_grad;
    auto& s = segments_[i];
    auto& grad = s.parameter.mutable_grad();
    if (grad.defined() && !grad.is_sparse() && grad.const_data_ptr() == place_of(s)) return;
    auto view = grad_view(s);
    if (!grad.defined())
        view.zero_();
    else if (grad.is_sparse())
        view.zero_().add_(grad);
    else
        view.copy_(grad);
    grad = view;
    if (own_grads_.defined() && s.padded > s.count) { // another unit was here
        const auto& u = units_[s.unit];
        grads_P_.narrow(0, u.grads_at + (s.offset - u.place.begin) + s.count, s.padded - s.count)
            .zero_();
    }
}

namespace detail {

SKEIN_INLINE void cast_inputs(torch::nn::Module& module, const flat_store& store, bool on) {
    if (on && !store.is_mixed()) return;
    const auto set = [&](unit_mark* mark, const std::string& prefix) {
        if (mark == nullptr) return;
        std::optional<at::ScalarType> type;
        for (const auto& s : store.segments())
            if (on && s.name.starts_with(prefix) && store.units()[s.unit].type != at::kFloat)
                type = store.units()[s.unit].type;
        mark->compute_in(type);
    };
    set(dynamic_cast<unit_mark*>(&module), "");
    for (const auto& item : module.named_modules(std::string(), /*include_self=*/false))
        set(dynamic_cast<unit_mark*>(item.value().get()), item.key() + ".");
}

} // namespace detail

} // namespace skein::train

// ======== skein/train/wrap.hpp
// How a model's parameters are grouped into units: by the type of its blocks, by size, or into
// buckets.
//
//     FSDP<auto_wrap<Block>>          each Block is a unit, what is left is the root
//     FSDP<auto_wrap_size<1 << 20>>   runs of parameters of at least a million elements
//     DDP<bucket<1, 25>>              runs of 25 MiB, the last to be registered in a first one of 1
//                                     MiB
//
//   source: auto-wrap policies as in PyTorch's FSDP (size_based_auto_wrap_policy,
//   ModuleWrapPolicy); bucket sizes as in its reducer


#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace skein {

namespace train {

/// The plan of a store: see store_options::plan.
using plan_function =
    std::function<unit_plan(torch::nn::Module&, const std::vector<plan_parameter>&)>;

namespace detail {

/// One unit per module that `is_block` says yes to, the innermost where they are nested; what
/// belongs to none or to several (tied) is the root.
///   wanted  for the error: what was looked for
///   errors  invalid_argument when there is none; it lists the types that there are
[[nodiscard]] unit_plan plan_blocks(torch::nn::Module& root,
                                    const std::vector<plan_parameter>& parameters,
                                    const std::function<bool(const torch::nn::Module&)>& is_block,
                                    const std::vector<const std::type_info*>& wanted);

/// Runs of neighbours in order of registration, each as soon as it has so many elements.
[[nodiscard]] unit_plan plan_runs(const std::vector<plan_parameter>& parameters,
                                  std::int64_t elements);

/// Runs counted from the last parameter, whose gradient is ready first.
[[nodiscard]] unit_plan plan_buckets(const std::vector<plan_parameter>& parameters,
                                     std::size_t first_bytes, std::size_t bytes);

} // namespace detail
} // namespace train

/// How gradients are cut for sending. The first bucket is small so that sending starts early.
template <std::size_t FirstMiB = 1, std::size_t MiB = 25>
struct bucket {
    static constexpr std::size_t first_bytes = FirstMiB << 20;
    static constexpr std::size_t bytes = MiB << 20;
};

/// Every module of one of these types is a unit: holders (TORCH_MODULE) or module classes.
template <class... Blocks>
struct auto_wrap {
    static_assert(sizeof...(Blocks) > 0, "auto_wrap<Block...> needs the types of the blocks");

    [[nodiscard]] static bool is_block(const torch::nn::Module& m) {
        return train::detail::is_any_of<Blocks...>(m);
    }

    [[nodiscard]] static train::unit_plan plan(
        torch::nn::Module& root, const std::vector<train::plan_parameter>& parameters) {
        return train::detail::plan_blocks(
            root, parameters, is_block,
            {&typeid(typename train::detail::module_type<Blocks>::type)...});
    }
};

/// Runs of parameters with at least so many elements each.
template <std::int64_t Elements>
struct auto_wrap_size {
    static_assert(Elements > 0);

    [[nodiscard]] static train::unit_plan plan(
        torch::nn::Module& /*root*/, const std::vector<train::plan_parameter>& parameters) {
        return train::detail::plan_runs(parameters, Elements);
    }
};

/// Groups parameters into units. Laws: a pure function of the model; every parameter has a unit.
template <class W>
concept wrap_policy =
    requires(torch::nn::Module& root, const std::vector<train::plan_parameter>& parameters) {
        { W::plan(root, parameters) } -> std::same_as<train::unit_plan>;
    } || requires {
        { W::first_bytes } -> std::convertible_to<std::size_t>;
        { W::bytes } -> std::convertible_to<std::size_t>;
    };

namespace train::detail {
/// A policy as a function.
template <wrap_policy W>
[[nodiscard]] plan_function plan_of() {
    if constexpr (requires { W::bytes; })
        return [](torch::nn::Module&, const std::vector<plan_parameter>& parameters) {
            return plan_buckets(parameters, W::first_bytes, W::bytes);
        };
    else
        return [](torch::nn::Module& root, const std::vector<plan_parameter>& parameters) {
            return W::plan(root, parameters);
        };
}
} // namespace train::detail

} // namespace skein


// ======== skein/train/detail/wrap.ipp
// Bodies of <skein/train/wrap.hpp>.


#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE std::string types_of(torch::nn::Module& root) {
    std::map<std::string, int> found;
    for (const auto& each : root.modules(/*include_self=*/false)) {
        const auto& module = *each;
        found[type_name(typeid(module))] += 1;
    }
    std::string all;
    for (const auto& [name, times] : found)
        all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", name, times);
    return all.empty() ? std::string("no submodule at all") : all;
}

SKEIN_INLINE unit_plan plan_blocks(torch::nn::Module& root,
                                   const std::vector<plan_parameter>& parameters,
                                   const std::function<bool(const torch::nn::Module&)>& is_block,
                                   const std::vector<const std::type_info*>& wanted) {
    unit_plan plan{{""}, {}};
    std::vector<std::string> prefixes{""}; // by unit
    for (const auto& item : root.named_modules(std::string(), /*include_self=*/false))
        if (is_block(*item.value())) {
            plan.names.push_back(item.key());
            prefixes.push_back(item.key() + ".");
        }
    if (plan.names.size() == 1) {
        std::string names;
        for (const auto* type : wanted) names += (names.empty() ? "" : ", ") + type_name(*type);
        throw error(errc::invalid_argument,
                    fmt::format("the model has no module of type {}", names))
            .with_hint("give auto_wrap the types of its blocks; there are: " + types_of(root));
    }
    const auto innermost = [&](std::string_view name) {
        std::size_t best = 0;
        for (std::size_t u = 1; u < prefixes.size(); ++u)
            if (name.starts_with(prefixes[u]) && prefixes[u].size() > prefixes[best].size())
                best = u;
        return best;
    };
    for (const auto& p : parameters) {
        std::set<std::size_t> units{innermost(p.name)};
        for (const auto& alias : p.aliases) units.insert(innermost(alias));
        plan.unit_of.push_back(units.size() == 1 ? *units.begin() : 0);
    }
    return plan;
}

SKEIN_INLINE unit_plan plan_runs(const std::vector<plan_parameter>& parameters,
                                 std::int64_t elements) {
    unit_plan plan;
    std::int64_t have = elements;
    for (const auto& p : parameters) {
        if (have >= elements) {
            plan.names.push_back(p.name);
            have = 0;
        }
        plan.unit_of.push_back(plan.names.size() - 1);
        have += p.count;
    }
    return plan;
}

SKEIN_INLINE unit_plan plan_buckets(const std::vector<plan_parameter>& parameters,
                                    std::size_t first_bytes, std::size_t bytes) {
    unit_plan plan;
    std::size_t buckets = 0, have = 0;
    plan.unit_of.resize(parameters.size());
    for (std::size_t i = parameters.size(); i-- > 0;) {
        if (buckets == 0 || have >= (buckets == 1 ? first_bytes : bytes)) {
            buckets += 1;
            have = 0;
        }
        plan.unit_of[i] = buckets - 1;
        have += static_cast<std::size_t>(padded_count(parameters[i].count)) * sizeof(float);
    }
    plan.names.resize(buckets);
    for (std::size_t i = parameters.size(); i-- > 0;) {
        plan.unit_of[i] = buckets - 1 - plan.unit_of[i];
        plan.names[plan.unit_of[i]] = parameters[i].name; // of the first, in the end
    }
    return plan;
}

} // namespace skein::train::detail


// ======== skein/train/detail/sharded.hpp, continued
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace skein::train::detail {

/// What tells the strategies apart.
struct shard_policy {
    std::string_view name;
    bool shard_states = false;     ///< ZeRO-1: each rank updates a part
    bool shard_gradients = false;  ///< ZeRO-2: and keeps its part of the gradients only
    bool shard_parameters = false; ///< ZeRO-3: and of the parameters
    bool inside_hosts = false;     ///< sharded inside each host, replicated between them
    bool reshard_after_forward = true;
    int prefetch = 1; ///< units gathered ahead of the one in use
    precision_policy precision{};
};

class unit_gatherer;

/// The part of every block that this rank will own; collective.
[[nodiscard]] build_plan plan_build(const context& ctx, const shard_policy& policy);

/// Elements of each sharding rank, for the collectives.
[[nodiscard]] std::vector<std::size_t> counts_of(const flat_unit& unit);
/// A flat tensor, or a part of one, for the collectives.
[[nodiscard]] dist::buffer_view view_of_flat(const at::Tensor& flat);
/// Starts to gather a unit in its place: its range of `flat`, which is laid out as the parameters.
[[nodiscard]] dist::ticket gather_unit(dist::comm_thread& comm, const at::Tensor& flat,
                                       const flat_unit& unit, dist::collective_tag tag);

/// The groups of one strategy; null where there is nobody else.
struct shard_groups {
    shard_groups(const context& ctx, const shard_policy& policy);

    /// A further communicator of the ranks of `shard`, which is not null.
    [[nodiscard]] std::unique_ptr<dist::comm_thread> another(const context& ctx) const;
    /// Other ranks own the same parts, and the first of them saves them.
    [[nodiscard]] bool is_saved_elsewhere() const noexcept;
    /// The replica whose host is that of the first rank of the world.
    [[nodiscard]] int first_replica() const;

    dist::comm_thread* world = nullptr;
    dist::comm_thread* shard = nullptr;
    dist::comm_thread* replicas = nullptr;

    void abort(const error& why) const noexcept;
    void drain() const noexcept;

private:
    int host_ = -1; // its number, for sharding inside hosts
    std::unique_ptr<dist::comm_thread> own_shard_, own_replicas_;
};

class sharded_parallel {
public:
    sharded_parallel(const context& ctx, torch::nn::Module& module, const shard_policy& policy,
                     const plan_function& plan);
    sharded_parallel(const sharded_parallel&) = delete;
    sharded_parallel& operator=(const sharded_parallel&) = delete;
    ~sharded_parallel();

    [[nodiscard]] flat_store& store() noexcept { return *store_; }
    void begin_step();
    /// With the gradients of a step kept whole, only the last micro-batch communicates; with
    /// sharded gradients each does.
    void begin_micro(bool last);
    void finish_backward();
    [[nodiscard]] double squared_norm(double mine);
    void publish();
    /// Rank 0's buffers (running statistics) on every rank. Also at the beginning of every step, as
    /// torch does: how often a run evaluates then changes nothing. What was written to the module
    /// is in the masters.
    void sync_buffers();
    void begin_evaluation();
    void end_evaluation();
    void abort(const error& why) noexcept;
    void finish();
    /// Without shards any number of the ranks may go on; with shards as many of a group as before,
    /// each with the part that it has.
    void rebind();

    [[nodiscard]] std::size_t buckets() const noexcept;
    /// Units of the last step whose exchange began before the backward pass had ended.
    [[nodiscard]] std::size_t overlapped() const noexcept { return overlapped_; }
    /// The ranks of a shard group see one copy of the parameters.
    [[nodiscard]] bool one_copy() const noexcept { return one_copy_; }

private:
    struct unit_state {
        std::size_t missing = 0;          ///< gradients that have not come in this micro-batch
        bool launched = false;            ///< on its way, in this micro-batch
        bool taken = false;               ///< and its result is where the optimizer finds it
        bool kept = false;                ///< the owned gradients hold micro-batches of this step
        dist::ticket reduced, replicated; // the second: under way once it has crossed
    };
    enum class phase : std::uint8_t { idle, passing, reducing };

    void build(torch::nn::Module& module, const plan_function& plan);
    void find_marks(torch::nn::Module& module);
    void make_store(torch::nn::Module& module, const plan_function& plan);
    [[nodiscard]] std::function<at::Tensor(std::int64_t, at::ScalarType)> gradient_memory() const;
    void agree_on_origin();
    void give_up_pass() noexcept;
    void spread_values();
    void spread_buffers();
    void broadcast(const at::Tensor& tensor);
    void ready(std::size_t segment);
    [[nodiscard]] bool make_place(std::size_t unit, bool wait);
    void send(std::size_t unit);
    void launch(std::size_t unit);
    void cross(std::size_t wait_until);
    void take(std::size_t unit);
    void end_micro();
    void gather_all(bool masters);
    void return_masters();
    [[nodiscard]] bool reduces() const noexcept {
        return groups_->shard != nullptr || groups_->replicas != nullptr;
    }
    [[nodiscard]] dist::collective_tag tag(std::size_t unit, dist::tag_phase phase) const noexcept;

    const context* ctx_;
    torch::nn::Module* module_;
    shard_policy policy_;
    std::unique_ptr<shard_groups> groups_;
    int shards_ = 1, shard_ = 0; // ranks that everything is cut between, and this one's number
    std::uint64_t origin_ = 0;   // the same on the ranks that were there when this was made
    std::unique_ptr<flat_store> store_;
    std::shared_ptr<unit_gatherer> gatherer_; // when parameters are gathered unit by unit
    bool one_copy_ = false, has_buffers_ = false, finished_ = false;

    std::vector<unit_state> states_;
    std::vector<std::shared_ptr<const unit_mark>> marks_; // of the module, each once
    std::vector<const unit_mark*> mark_of_; // by segment: the innermost block it is in, or none
    std::vector<char> ready_;               // by segment: its hook has fired in this pass
    std::vector<std::size_t> turn_; // by unit: who has its place next, in a backward pass before it
    std::size_t left_ = 0;          // units that have not left for reduction, in this pass
    std::size_t crossed_ = 0;       // units that have not left for the replicas
    phase phase_ = phase::idle;
    std::size_t overlapped_ = 0;
    std::uint64_t step_ = 0;
};

} // namespace skein::train::detail


// ======== skein/train/detail/sharded.ipp
// Bodies of <skein/train/detail/sharded.hpp>.


// ======== skein/train/detail/unit_gatherer.ipp
// Gathers the parameters of a unit when its forward or backward begins, and drops them when it has
// ended. Used by <skein/train/detail/sharded.ipp> alone.
//
// The address of a parameter never changes: dropping gives pages back to the system, gathering
// writes the same bytes to the same place below autograd, so tensors that were saved for the
// backward pass stay valid. While a unit is dropped its parameters are empty tensors: a layer that
// reads one outside of its unit gets a shape error at once, never zeros (a sum over all parameters
// sees no elements of it).
//
// The order of gathers is a contract between ranks: in a pass every unit once in the order of the
// forward pass, then every dropped one once backwards, whether a rank uses it or not. A unit is
// dropped when the forward of another one begins: one that is used again after that is gathered
// once more, and all ranks have to do so alike (else: errc::mismatch, with both units).


#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::train::detail {

/// Gives back the pages that lie wholly inside a range of the buffer.
SKEIN_INLINE void drop_pages(const at::Tensor& flat_P, flat_range range) {
    if (range.empty()) return;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto at = reinterpret_cast<std::uintptr_t>(flat_P.const_data_ptr());
    const auto begin =
        (at + static_cast<std::uintptr_t>(range.begin) * flat_P.element_size() + page - 1) / page *
        page;
    const auto end =
        (at + static_cast<std::uintptr_t>(range.end) * flat_P.element_size()) / page * page;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

SKEIN_INLINE std::vector<std::size_t> counts_of(const flat_unit& unit) {
    std::vector<std::size_t> counts;
    for (const auto& shard : unit.shards) counts.push_back(static_cast<std::size_t>(shard.size()));
    return counts;
}

SKEIN_INLINE dist::buffer_view view_of_flat(const at::Tensor& flat) {
    const auto type = flat.scalar_type() == at::kFloat      ? dist::dtype::f32
                      : flat.scalar_type() == at::kBFloat16 ? dist::dtype::bf16
                                                            : dist::dtype::f16;
    SKEIN_CHECK(type != dist::dtype::f16 || flat.scalar_type() == at::kHalf,
                "a flat buffer of type {}", c10::toString(flat.scalar_type()));
    return {flat.mutable_data_ptr(), static_cast<std::size_t>(flat.numel()), type};
}

SKEIN_INLINE dist::ticket gather_unit(dist::comm_thread& comm, const at::Tensor& flat,
                                      const flat_unit& unit, dist::collective_tag tag) {
    const auto view = [&](flat_range r) { return view_of_flat(flat.narrow(0, r.begin, r.size())); };
    return comm.all_gather_v(view(unit.own), view(unit.place), counts_of(unit), tag);
}

class unit_gatherer final : public unit_hooks, public std::enable_shared_from_this<unit_gatherer> {
public:
    unit_gatherer(torch::nn::Module& module, flat_store& store,
                  std::unique_ptr<dist::comm_thread> comm, const shard_policy& policy)
        : store_(&store), comm_(std::move(comm)), reshard_(policy.reshard_after_forward),
          ahead_(std::max(0, policy.prefetch)) {
        std::map<std::string, std::shared_ptr<torch::nn::Module>> modules;
        for (const auto& item : module.named_modules(std::string(), false))
            modules.emplace(item.key(), item.value());
        states_.resize(store.units().size());
        for (std::size_t u = 0; u < store.units().size(); ++u) {
            const auto& unit = store.units()[u];
            if (unit.name.empty()) continue; // the root
            const auto found = modules.find(unit.name);
            auto mark = found == modules.end()
                            ? nullptr
                            : std::dynamic_pointer_cast<unit_mark>(found->second);
            if (!mark)
                throw error(errc::not_supported,
                            fmt::format("not supported: between hosts FSDP gathers '{}' when its "
                                        "forward begins, and that is no skein::unit",
                                        unit.name))
                    .with_hint("declare the block with TORCH_MODULE_IMPL(Block, "
                               "skein::unit<BlockImpl>) and wrap by that type, or choose Zero2");
            states_[u].place = order_.size();
            states_[u].mark = std::move(mark);
            order_.push_back(u);
        }
    }

    /// Not in the constructor: the hooks hold this object.
    void attach() {
        for (const auto u : order_) states_[u].mark->attach(shared_from_this(), u);
    }
    void detach() {
        for (const auto u : order_) {
            states_[u].mark->attach(nullptr, 0);
            if (states_[u].is != place::here) states_[u].mark->lose();
        }
    }

    [[nodiscard]] dist::comm_thread& comm() noexcept { return *comm_; }
    /// Every block has its values.
    [[nodiscard]] bool is_whole() const {
        return std::ranges::all_of(states_, [](const state& s) { return s.is == place::here; });
    }

    void begin_pass(std::uint64_t step) {
        step_ = step;
        in_pass_ = true;
        backwards_ = false;
        forward_ = 0;
        const auto kept = reshard_ ? std::size_t{1} : order_.size(); // from the forward pass
        backward_ = order_.size() > kept ? order_.size() - kept : 0;
    }
    /// Takes part in every gather that is left of this pass, used here or not.
    void flush() {
        flush_forward();
        while (backward_ > 0) start(--backward_);
    }
    void end_pass() {
        flush();
        idle_.clear();
        for (const auto u : order_) drop(u);
        in_pass_ = false;
    }

    /// New values: the root is gathered, the others are dropped.
    void publish(std::uint64_t step) {
        step_ = step;
        for (std::size_t u = 0; u < states_.size(); ++u)
            if (!states_[u].mark) gather(u, dist::tag_phase::publish).wait();
        for (const auto u : order_) drop(u);
    }

    /// The whole module, until drop_all().
    void gather_all() {
        for (const auto u : order_) {
            gather(u, dist::tag_phase::publish).wait();
            store_->show(store_->units()[u], true);
            states_[u].is = place::here;
        }
        whole_ = true;
    }
    void drop_all() {
        whole_ = false;
        for (const auto u : order_) drop(u);
    }

    /// Another communicator of the same ranks in the same order; a pass that was under way is over.
    void rebind(std::unique_ptr<dist::comm_thread> comm) {
        comm_->drain();
        comm_ = std::move(comm);
        idle_.clear();
        in_pass_ = backwards_ = false;
        for (const auto u : order_) {
            auto& s = states_[u];
            if (s.is == place::coming) { // its gather may have failed
                s.gathered = {};
                s.is = place::here;
            }
            drop(u);
        }
        whole_ = false;
    }

    /// All gradients of the unit are there.
    void unit_done(std::size_t u) {
        if (states_[u].mark && !whole_) drop(u);
    }

    void before_forward(std::size_t u) override {
        if (whole_) return;
        drop_idle(u);
        if (!in_pass_)
            throw error(errc::invalid_argument,
                        fmt::format("the forward of {} outside of a training step",
                                    store_->units()[u].name))
                .with_hint("its parameters are sharded; run the model inside the loss, in an "
                           "evaluation, or after fit()");
        const auto wanted = states_[u].place + static_cast<std::size_t>(ahead_);
        while (forward_ < order_.size() && forward_ <= wanted) start(forward_++);
        need(u);
    }

    void after_forward(std::size_t u, std::span<const at::Tensor> outputs) override {
        if (whole_) return;
        if (torch::GradMode::is_enabled())
            for (const auto& output : outputs)
                if (output.defined() && output.requires_grad()) {
                    output.register_hook([weak = weak_from_this(), u](const at::Tensor&) {
                        if (const auto me = weak.lock()) me->before_backward(u);
                    });
                }
        // The last one waits for its backward, which comes next. Inside of a backward pass a block
        // is computed again, and waits for its gradients.
        if (reshard_ && !backwards_ && states_[u].place + 1 != order_.size()) idle_.push_back(u);
    }

    void before_backward(std::size_t u) override {
        if (whole_ || !in_pass_) return;
        flush_forward();
        backwards_ = true;
        const auto at = states_[u].place;
        const auto wanted = at > static_cast<std::size_t>(ahead_)
                                ? at - static_cast<std::size_t>(ahead_)
                                : std::size_t{0};
        while (backward_ > wanted) start(--backward_);
        need(u);
    }

private:
    enum class place : std::uint8_t { dropped, coming, here };
    struct state {
        std::shared_ptr<unit_mark> mark; // none: the root
        std::size_t place = 0;           // in order_
        enum place is = place::here;
        dist::ticket gathered;
    };

    /// Drops the units whose forward has ended, but for `except`.
    void drop_idle(std::size_t except) {
        for (const auto u : std::exchange(idle_, {}))
            if (u != except) drop(u);
    }

    void flush_forward() {
        drop_idle(states_.size());
        while (forward_ < order_.size()) {
            const auto u = order_[forward_];
            start(forward_++);
            if (reshard_ && forward_ != order_.size()) drop(u);
        }
    }

    void start(std::size_t at) {
        const auto u = order_[at];
        auto ticket = gather(u, dist::tag_phase::gather);
        if (states_[u].is == place::here) {
            ticket.wait(); // the same bytes once more
            return;
        }
        states_[u].gathered = std::move(ticket);
        states_[u].is = place::coming;
    }

    /// The unit's parameters have their values when it returns.
    void need(std::size_t u) {
        auto& s = states_[u];
        if (s.is == place::here) return;
        if (s.is == place::dropped) start(s.place);
        s.gathered.wait();
        store_->show(store_->units()[u], true);
        s.is = place::here;
    }

    void drop(std::size_t u) {
        auto& s = states_[u];
        if (s.is == place::dropped) return;
        if (s.is == place::coming) s.gathered.wait();
        const auto& unit = store_->units()[u];
        store_->show(unit, false);
        drop_pages(store_->values_of(unit), {unit.place.begin, unit.own.begin});
        drop_pages(store_->values_of(unit), {unit.own.end, unit.place.end});
        s.is = place::dropped;
    }

    dist::ticket gather(std::size_t u, dist::tag_phase phase) {
        const auto& unit = store_->units()[u];
        return gather_unit(*comm_, store_->values_of(unit), unit,
                           {static_cast<std::uint32_t>(u), phase, step_});
    }

    flat_store* store_;
    std::unique_ptr<dist::comm_thread> comm_;
    bool reshard_;
    int ahead_;
    std::vector<state> states_;      // by unit
    std::vector<std::size_t> idle_;  // their forward has ended, they are still gathered
    std::vector<std::size_t> order_; // units that are gathered on demand, as forward comes to them
    std::size_t forward_ = 0;        // place of the next one to gather forwards
    std::size_t backward_ = 0;       // behind the next one to gather backwards
    std::uint64_t step_ = 0;
    bool in_pass_ = false, backwards_ = false, whole_ = false;
};

} // namespace skein::train::detail


// ======== skein/train/detail/sharded.ipp, continued
#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

// ---- groups -------------------------------------------------------------------------------------

/// The first rank of this rank's host, as the number of the host.
SKEIN_INLINE int host_number(const context& ctx, const std::string& key) {
    const auto hosts = ctx.world()->exchange(key, as_bytes(std::string_view(ctx.world()->host())));
    std::map<std::string, int> first, ranks;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
        const auto host = std::string(as_text(hosts[r]));
        first.emplace(host, static_cast<int>(r));
        ranks[host] += 1;
    }
    for (const auto& [host, count] : ranks)
        if (count != ranks.begin()->second)
            throw error(errc::usage,
                        fmt::format("hybrid sharding needs as many ranks on every host: {} has {}, "
                                    "{} has {}",
                                    ranks.begin()->first, ranks.begin()->second, host, count))
                .with_hint("start equal numbers of workers per host, or choose FSDP");
    return first.at(ctx.world()->host());
}

SKEIN_INLINE shard_groups::shard_groups(const context& ctx, const shard_policy& policy)
    : world(ctx.comm()) {
    if (ctx.world_size() == 1) return;
    if (!policy.inside_hosts) {
        (policy.shard_states ? shard : replicas) = world;
        return;
    }
    const auto options = [&](const char* what) {
        return ctx.group_options(fmt::format("{}-{}", policy.name, what));
    };
    const auto keep = [](std::unique_ptr<dist::comm_thread>& own, dist::comm_thread*& use) {
        if (own && own->world_size() > 1) use = own.get();
    };
    host_ = host_number(ctx, options("hosts").name);
    own_shard_ = dist::split(*ctx.world(), host_, options("shard"));
    own_replicas_ = dist::split(*ctx.world(), own_shard_->rank(), options("replicas"));
    keep(own_shard_, shard);
    keep(own_replicas_, replicas);
}

SKEIN_INLINE std::unique_ptr<dist::comm_thread> shard_groups::another(const context& ctx) const {
    auto options = ctx.group_options("gather");
    if (host_ >= 0) return dist::split(*ctx.world(), host_, std::move(options));
    return dist::make_comm_thread(*ctx.world(), options);
}

SKEIN_INLINE bool shard_groups::is_saved_elsewhere() const noexcept {
    return replicas != nullptr && replicas->rank() > 0;
}

SKEIN_INLINE int shard_groups::first_replica() const {
    std::int64_t root = host_ == 0 ? replicas->rank() : 0; // hosts are numbered by their first rank
    replicas->all_reduce(dist::view_of(std::span(&root, 1)), dist::reduce_op::max).wait();
    return static_cast<int>(root);
}

SKEIN_INLINE void shard_groups::abort(const error& why) const noexcept {
    for (auto* const group : {world, own_shard_.get(), own_replicas_.get()})
        if (group != nullptr) group->abort(why);
}

SKEIN_INLINE void shard_groups::drain() const noexcept {
    for (auto* const group : {own_shard_.get(), own_replicas_.get(), world})
        if (group != nullptr) group->drain();
}

SKEIN_INLINE build_plan plan_build(const context& ctx, const shard_policy& policy) {
    build_plan plan{.stays_whole = policy.precision.keeps_f32};
    if (ctx.world_size() == 1) return plan;
    if (!policy.inside_hosts) {
        plan.shards = ctx.world_size();
        plan.shard = ctx.rank();
        return plan;
    }
    const auto hosts = ctx.world()->exchange(ctx.group_options("build").name,
                                             as_bytes(std::string_view(ctx.world()->host())));
    plan.shards = 0;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
        if (as_text(hosts[r]) != ctx.world()->host()) continue;
        plan.shards += 1;
        if (r < static_cast<std::size_t>(ctx.rank())) plan.shard += 1;
    }
    return plan;
}

// ---- construction -------------------------------------------------------------------------------

SKEIN_INLINE sharded_parallel::sharded_parallel(const context& ctx, torch::nn::Module& module,
                                                const shard_policy& policy,
                                                const plan_function& plan)
    : ctx_(&ctx), module_(&module), policy_(policy),
      groups_(std::make_unique<shard_groups>(ctx, policy)) {
    try {
        build(module, plan);
    } catch (...) {
        abort(to_error(std::current_exception())); // the reason, before the groups end without one
        if (store_ && store_->is_mixed() && !one_copy_) {
            cast_inputs(module, *store_, /*on=*/false);
            store_->show_masters(/*whole=*/false);
        }
        throw;
    }
}

SKEIN_INLINE void sharded_parallel::build(torch::nn::Module& module, const plan_function& plan) {
    make_store(module, plan);
    states_.resize(store_->units().size());
    ready_.assign(store_->segments().size(), 0);
    for (const auto& f : store_->fixed()) has_buffers_ = has_buffers_ || f.is_buffer;

    constexpr auto nobody = static_cast<std::size_t>(-1);
    turn_.assign(states_.size(), nobody);
    if (policy_.shard_gradients && groups_->shard != nullptr) {
        std::map<std::int64_t, std::size_t> latest; // by place
        for (std::size_t u = states_.size(); u-- > 0;) {
            const auto [seen, fresh] = latest.try_emplace(store_->units()[u].grads_at, u);
            if (!fresh) turn_[u] = std::exchange(seen->second, u);
        }
        store_->ask_before([this](std::size_t segment) {
            return phase_ != phase::reducing ||
                   make_place(store_->segments()[segment].unit, /*wait=*/!gatherer_);
        });
    }
    find_marks(module);
    cast_inputs(module, *store_, /*on=*/true);
    if (reduces()) store_->when_final([this](std::size_t segment) { ready(segment); });
    agree_on_origin();
    if (groups_->world == nullptr) return;
    spread_values();
    if (!policy_.shard_parameters || groups_->shard == nullptr || one_copy_) return;
    gatherer_ = std::make_shared<unit_gatherer>(module, *store_, groups_->another(*ctx_), policy_);
    gatherer_->drop_all();
    gatherer_->attach();
}

SKEIN_INLINE void sharded_parallel::find_marks(torch::nn::Module& module) {
    mark_of_.assign(store_->segments().size(), nullptr);
    std::vector<std::size_t> longest(mark_of_.size(), 0);
    for (const auto& item : module.named_modules(std::string(), /*include_self=*/false)) {
        auto mark = std::dynamic_pointer_cast<const unit_mark>(item.value());
        if (!mark) continue;
        const auto prefix = item.key() + ".";
        for (std::size_t i = 0; i < mark_of_.size(); ++i)
            if (prefix.size() > longest[i] && store_->segments()[i].name.starts_with(prefix)) {
                longest[i] = prefix.size();
                mark_of_[i] = mark.get();
            }
        marks_.push_back(std::move(mark));
    }
}

/// A tensor that keeps the group's memory.
SKEIN_INLINE at::Tensor adopt(std::shared_ptr<dist::group_memory> memory, std::int64_t elements,
                              at::ScalarType type) {
    auto* const data = memory->data();
    return at::from_blob(
        data, {elements}, [held = std::move(memory)](void*) mutable { held.reset(); },
        at::TensorOptions().dtype(type));
}

[[nodiscard]] SKEIN_INLINE std::size_t bytes_of(std::int64_t elements, at::ScalarType type) {
    return static_cast<std::size_t>(std::max<std::int64_t>(1, elements)) * c10::elementSize(type);
}

/// Where the group that reduces can work in place; none without such a group.
SKEIN_INLINE std::function<at::Tensor(std::int64_t, at::ScalarType)> sharded_parallel::
    gradient_memory() const {
    auto* const reducing = groups_->shard != nullptr ? groups_->shard : groups_->replicas;
    if (reducing == nullptr) return {};
    return [reducing](std::int64_t elements, at::ScalarType type) {
        auto memory = reducing->allocate(bytes_of(elements, type), dist::memory_kind::own);
        return memory->everywhere() ? adopt(std::move(memory), elements, type)
                                    : make_flat_buffer(elements, type);
    };
}

SKEIN_INLINE void sharded_parallel::make_store(torch::nn::Module& module,
                                               const plan_function& plan) {
    store_options options;
    options.plan = plan;
    options.precision = policy_.precision;
    if (groups_->shard != nullptr) {
        options.shards = groups_->shard->world_size();
        options.shard = groups_->shard->rank();
        if (policy_.shard_gradients) options.gradient_places = 2;
        // Asked for before the values are copied in, hence the reference to `options`.
        options.parameter_memory = [&](std::int64_t elements, at::ScalarType type) {
            auto memory =
                groups_->shard->allocate(bytes_of(elements, type), dist::memory_kind::common);
            one_copy_ = memory->everywhere();
            if (!one_copy_) return make_flat_buffer(elements, type);
            options.brings_values = groups_->shard->rank() == 0;
            return adopt(std::move(memory), elements, type);
        };
    }
    shards_ = options.shards;
    shard_ = options.shard;
    options.saved_elsewhere = groups_->is_saved_elsewhere();
    options.gradient_memory = gradient_memory();
    if (groups_->world != nullptr) { // before anything is shared that depends on it
        store_options only;
        only.plan = plan;
        only.precision = policy_.precision;
        only.only_layout = true;
        const flat_store alone(module, only);
        fnv1a h;
        h.number(alone.layout_hash());
        for (const auto& u : alone.units()) h.number(static_cast<std::uint64_t>(u.place.end));
        require_same(*ctx_, h.value(), "the model");
    }
    store_ = std::make_unique<flat_store>(module, options);
}

/// Rank 0's values on every rank.
SKEIN_INLINE void sharded_parallel::spread_values() {
    if (one_copy_) {
        groups_->shard->barrier().wait(); // its first rank has brought them
        if (groups_->replicas != nullptr) {
            const int root = groups_->first_replica();
            for (const auto& u : store_->units()) {
                auto own = store_->params_P().narrow(0, u.own.begin, u.own.size());
                if (own.numel() == 0) continue;
                const dist::buffer_view view{own.mutable_data_ptr(), own.nbytes(), dist::dtype::u8};
                groups_->replicas->broadcast(view, root).wait();
            }
            groups_->shard->barrier().wait();
            if (store_->is_mixed()) {
                store_->cast_owned();
                groups_->shard->barrier().wait();
            }
        }
    } else {
        if (std::ranges::none_of(store_->units(), &flat_unit::in_parts))
            broadcast(store_->params_P());
        else
            for (const auto& u : store_->units())
                if (!u.in_parts)
                    broadcast(store_->params_P().narrow(0, u.place.begin, u.place.size()));
        if (store_->is_mixed()) {
            store_->cast_all();
            for (const auto& u : store_->units()) { // of the masters what is owned stays
                if (u.type == at::kFloat) continue;
                drop_pages(store_->params_P(), {u.place.begin, u.own.begin});
                drop_pages(store_->params_P(), {u.own.end, u.place.end});
            }
        }
    }
    for (const auto& f : store_->fixed()) broadcast(f.tensor);
    store_->cast_fixed();
}

SKEIN_INLINE void sharded_parallel::broadcast(const at::Tensor& tensor) {
    at::NoGradGuard no_grad;
    auto flat = tensor.detach().contiguous();
    const dist::buffer_view bytes{flat.mutable_data_ptr(), flat.nbytes(), dist::dtype::u8};
    if (bytes.count == 0) return;
    groups_->world->broadcast(bytes, 0).wait();
    if (!flat.is_same(tensor) && flat.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(flat);
}

SKEIN_INLINE sharded_parallel::~sharded_parallel() {
    const bool whole = !gatherer_ || gatherer_->is_whole();
    if (gatherer_) gatherer_->detach();
    if (groups_->world != nullptr) { // no exchange may outlive the memory it works on
        if (std::uncaught_exceptions() > 0 || (!finished_ && phase_ != phase::idle)) {
            const error why(errc::aborted,
                            fmt::format("rank {} leaves because of an exception", ctx_->rank()));
            abort(why);
        }
        groups_->drain();
        if (gatherer_) gatherer_->comm().drain();
    }
    store_->when_final({});
    store_->ask_before({});
    if (finished_) return;
    cast_inputs(*module_, *store_, /*on=*/false);
    if (!one_copy_) {
        if (store_->is_mixed() && whole) store_->show_masters(/*whole=*/false);
        return;
    }
    try { // after an error: what the other ranks do from here on is none of this module's business
        store_->leave_shared_memory();
    } catch (const error& why) {
        logging::warn("train",
                      fmt::format("the parameters stay shared with other ranks: {}", why.what()));
    }
}

// ---- a step -------------------------------------------------------------------------------------

SKEIN_INLINE dist::collective_tag sharded_parallel::tag(std::size_t unit,
                                                        dist::tag_phase phase) const noexcept {
    return {static_cast<std::uint32_t>(unit), phase, step_};
}

SKEIN_INLINE void sharded_parallel::begin_step() {
    step_ += 1;
    store_->expect_gradients();
    for (auto& s : states_) s.kept = false;
    if (has_buffers_) spread_buffers();
}

SKEIN_INLINE void sharded_parallel::begin_micro(bool last) {
    end_micro();
    if (!reduces()) return;
    const bool each = policy_.shard_gradients && groups_->shard != nullptr;
    phase_ = last || each ? phase::reducing : phase::passing;
    left_ = crossed_ = states_.size();
    for (std::size_t u = 0; u < states_.size(); ++u) {
        auto& s = states_[u];
        s.missing = store_->units()[u].last - store_->units()[u].first;
        s.launched = s.taken = false;
    }
    std::fill(ready_.begin(), ready_.end(), 0);
    for (const auto& mark : marks_) mark->expect_nothing();
    if (gatherer_) gatherer_->begin_pass(step_);
}

/// The gradient of a segment is final.
SKEIN_INLINE void sharded_parallel::ready(std::size_t segment) {
    const auto& s = store_->segments()[segment];
    if (phase_ == phase::idle) return;
    if (mark_of_[segment] != nullptr && mark_of_[segment]->pending() > 0) return; // more to come
    if (std::exchange(ready_[segment], 1) != 0) {
        if (!states_[s.unit].launched) return; // added to what is in its place
        throw error(errc::not_supported,
                    "not supported: a gradient became final twice in one backward pass")
            .with_where(s.name)
            .with_hint("a custom function or a block that is computed again runs a backward pass "
                       "inside backward, over a weight that is used outside of it too");
    }
    if (--states_[s.unit].missing == 0 && gatherer_) gatherer_->unit_done(s.unit);
    if (phase_ != phase::reducing) return;
    while (left_ > 0 && states_[left_ - 1].missing == 0 &&
           make_place(left_ - 1, /*wait=*/!gatherer_))
        send(left_ - 1);
    cross(/*wait_until=*/states_.size());
}

/// Whether what had the unit's place before has left it. A rank that gathers must not wait in the
/// middle of a backward pass for what peers reduce: they may wait for its next gather.
SKEIN_INLINE bool sharded_parallel::make_place(std::size_t unit, bool wait) {
    const auto before = turn_[unit];
    if (before >= states_.size()) return true;
    auto& s = states_[before];
    if (s.taken) return true;
    if (!s.launched || (!wait && !s.reduced.done())) return false;
    take(before);
    return true;
}

/// Puts what is not in its place yet there, and sends the unit.
SKEIN_INLINE void sharded_parallel::send(std::size_t unit) {
    store_->settle_gradients(store_->units()[unit]);
    launch(unit);
}

SKEIN_INLINE void sharded_parallel::launch(std::size_t unit) {
    auto& s = states_[unit];
    const auto& u = store_->units()[unit];
    const auto view = view_of_flat(store_->grads_of(u));
    s.launched = true;
    left_ = unit;
    if (groups_->shard == nullptr) {
        s.reduced = groups_->replicas->all_reduce(view, dist::reduce_op::sum,
                                                  tag(unit, dist::tag_phase::reduce));
        return;
    }
    s.reduced = groups_->shard->reduce_scatter_v(view, counts_of(u), dist::reduce_op::sum,
                                                 tag(unit, dist::tag_phase::reduce));
}

/// What is reduced inside the shard group goes on to the replicas, in the order of units.
///   wait_until  waits for the units down to this one; the others go on if they are done
SKEIN_INLINE void sharded_parallel::cross(std::size_t wait_until) {
    if (groups_->shard == nullptr || groups_->replicas == nullptr) return;
    for (; crossed_ > left_; --crossed_) {
        auto& s = states_[crossed_ - 1];
        if (crossed_ - 1 < wait_until && !s.reduced.done()) return;
        s.reduced.wait();
        const auto& u = store_->units()[crossed_ - 1];
        auto own = store_->grads_of(u).narrow(0, u.own.begin - u.place.begin, u.own.size());
        s.replicated = groups_->replicas->all_reduce(view_of_flat(own), dist::reduce_op::sum,
                                                     tag(crossed_ - 1, dist::tag_phase::reduce));
    }
}

/// Waits for the sums of a unit that has left, and puts them where the optimizer finds them.
SKEIN_INLINE void sharded_parallel::take(std::size_t unit) {
    auto& s = states_[unit];
    cross(/*wait_until=*/unit);
    s.reduced.wait();
    s.replicated.wait();
    s.taken = true;
    if (store_->keeps_own_grads())
        store_->take_gradients(store_->units()[unit], std::exchange(s.kept, true));
}

/// Sends what no hook has completed, and waits for all sums.
SKEIN_INLINE void sharded_parallel::end_micro() {
    if (phase_ == phase::idle) return;
    if (gatherer_) gatherer_->flush();
    if (phase_ == phase::reducing) {
        while (left_ > 0) {
            const auto unit = left_ - 1;
            (void)make_place(unit, /*wait=*/true);
            send(unit);
        }
        for (std::size_t u = states_.size(); u-- > 0;)
            if (!states_[u].taken) take(u);
    }
    if (gatherer_) gatherer_->end_pass();
    phase_ = phase::idle;
}

SKEIN_INLINE void sharded_parallel::finish_backward() {
    store_->take_writes();
    if (!reduces()) {
        store_->settle_gradients();
        if (store_->keeps_own_grads())
            for (const auto& u : store_->units()) store_->take_gradients(u, /*add=*/false);
        return;
    }
    overlapped_ = states_.size() - left_;
    end_micro();
}

SKEIN_INLINE double sharded_parallel::squared_norm(double mine) {
    if (groups_->shard == nullptr) return mine;
    groups_->shard
        ->all_reduce(dist::view_of(std::span(&mine, 1)), dist::reduce_op::sum,
                     tag(0, dist::tag_phase::row))
        .wait();
    return mine;
}

SKEIN_INLINE void sharded_parallel::publish() {
    store_->cast_owned();
    if (groups_->shard == nullptr) return;
    if (one_copy_) {
        groups_->shard->barrier(tag(0, dist::tag_phase::publish)).wait();
    } else if (gatherer_) {
        gatherer_->publish(step_);
    } else {
        gather_all(/*masters=*/false);
    }
}

/// The new values of every unit; all ranks keep all.
SKEIN_INLINE void sharded_parallel::gather_all(bool masters) {
    std::vector<dist::ticket> ends;
    for (std::size_t u = 0; u < states_.size(); ++u) {
        const auto& unit = store_->units()[u];
        ends.push_back(gather_unit(*groups_->shard,
                                   masters ? store_->params_P() : store_->values_of(unit), unit,
                                   tag(u, dist::tag_phase::publish)));
    }
    for (const auto& end : ends) end.wait();
}

SKEIN_INLINE void sharded_parallel::sync_buffers() {
    store_->require_taken();
    store_->take_writes();
    spread_buffers();
}

SKEIN_INLINE void sharded_parallel::spread_buffers() {
    if (groups_->world == nullptr) return;
    for (const auto& f : store_->fixed())
        if (f.is_buffer) broadcast(f.tensor);
}

SKEIN_INLINE void sharded_parallel::begin_evaluation() {
    sync_buffers();
    if (gatherer_) gatherer_->gather_all();
}

SKEIN_INLINE void sharded_parallel::end_evaluation() {
    if (gatherer_) gatherer_->drop_all();
}

SKEIN_INLINE void sharded_parallel::abort(const error& why) noexcept {
    groups_->abort(why);
    if (gatherer_) gatherer_->comm().abort(why);
}

SKEIN_INLINE void sharded_parallel::finish() {
    store_->require_taken();
    store_->take_writes();
    if (gatherer_) {
        gatherer_->gather_all();
        gatherer_->detach();
    }
    cast_inputs(*module_, *store_, /*on=*/false);
    if (store_->is_mixed() && !one_copy_) return_masters();
    if (one_copy_) store_->leave_shared_memory();
    finished_ = true;
}

// ---- another generation -------------------------------------------------------------------------

/// What a rank brings along into a new generation.
struct rebind_word {
    std::uint64_t origin = 0, step = 0;
    std::int32_t shards = 1, shard = 0, now_shards = 1, now_shard = 0;
};

/// Nothing of an exchange that was under way is waited for, but for the threads that worked on it.
SKEIN_INLINE void sharded_parallel::give_up_pass() noexcept {
    abort(error(errc::aborted,
                fmt::format("rank {} goes on in another generation of the world", ctx_->rank())));
    groups_->drain();
    if (gatherer_) gatherer_->comm().drain();
    for (auto& s : states_) s.reduced = s.replicated = {};
    phase_ = phase::idle;
}

SKEIN_INLINE void sharded_parallel::agree_on_origin() {
    auto number = static_cast<std::int64_t>(system_random().next());
    if (groups_->world != nullptr)
        groups_->world->broadcast(dist::view_of(std::span(&number, 1)), 0).wait();
    origin_ = static_cast<std::uint64_t>(number);
}

SKEIN_INLINE void sharded_parallel::rebind() {
    give_up_pass();
    store_->take_writes();
    auto next = std::make_unique<shard_groups>(*ctx_, policy_);
    rebind_word mine{.origin = origin_, .step = step_, .shards = shards_, .shard = shard_};
    if (next->shard != nullptr) {
        mine.now_shards = next->shard->world_size();
        mine.now_shard = next->shard->rank();
    }
    const auto words = gather_bytes(*ctx_, wire::encode(mine));
    for (std::size_t r = 0; r < words.size(); ++r) {
        const auto word = wire::decode<rebind_word>(words[r]);
        if (!word || word->origin != origin_)
            throw error(errc::not_supported,
                        fmt::format("not supported: rank {} was not there when this training "
                                    "began, and joins it",
                                    r))
                .with_hint("resume all ranks from the last checkpoint");
        if (word->now_shards != word->shards || word->now_shard != word->shard)
            throw error(errc::not_supported,
                        fmt::format("not supported: rank {} has part {} of {}, and would have {} "
                                    "of {}: the parts of lost ranks are lost",
                                    r, word->shard, word->shards, word->now_shard,
                                    word->now_shards))
                .with_hint("resume from the last checkpoint, which fits any number of ranks");
        step_ = std::max(step_, word->step); // tags agree again
    }
    const auto old =
        std::exchange(groups_, std::move(next)); // its memory is used until the next line
    store_->move_gradients(gradient_memory(), groups_->is_saved_elsewhere());
    if (gatherer_) gatherer_->rebind(groups_->another(*ctx_));
    if (one_copy_ && groups_->shard != nullptr) groups_->shard->barrier().wait();
}

/// The module has all float32 values.
SKEIN_INLINE void sharded_parallel::return_masters() {
    if (groups_->shard != nullptr) gather_all(/*masters=*/true);
    store_->show_masters(/*whole=*/true);
}

SKEIN_INLINE std::size_t sharded_parallel::buckets() const noexcept {
    return reduces() ? states_.size() : 0;
}

} // namespace skein::train::detail

// ======== skein/train/strategy.hpp
// What the Trainer asks of a strategy: where parameters and gradients live, and how ranks agree.
//
// A strategy is a type: Trainer<Single>, Trainer<DDP<>>, Trainer<FSDP<auto_wrap<Block>>>. It is
// constructed once per run over the user's module, which knows nothing of it. One optimizer step
// then is
//
//     s.begin_step();
//     for each micro-batch m: s.begin_micro(m is the last); loss.backward();
//     // now the owned gradients of s.store() are summed over all ranks
//     s.finish_backward();
//     ... all ranks agree on the step (a collective), clip, optimizer over what s.store() owns ...
//     s.publish();                  // now every rank's module sees the new parameters


#include <concepts>

namespace skein::train {

/// Laws (the tests of every strategy check them):
///  1. After finish_backward() the owned gradients are the sum over ranks of what each rank's
///     backward passes since begin_step() added; the Trainer weights each loss so that this sum is
///     the gradient of the mean over the global batch.
///  2. The same inputs give the same bits, on every rank and in every run.
///  3. A parameter that no loss depends on, on one rank or all, has gradient zero and never hangs.
///  4. squared_norm(x), x of the owned gradients, gives the square norm over the whole model.
///  5. An error of the transport leaves as skein::error from finish_backward(), never as a hang.
///  6. Between finish_backward() and the first write to a parameter every rank has heard from every
///     other one (the Trainer's row); then publish(). Ranks of a host may share the parameters.
///  7. Between begin_evaluation() and end_evaluation() each rank runs as many forward passes as it
///     likes, without gradients; the module's buffers are those of rank 0.
///  8. abort(why) fails every exchange of the strategy with this reason, here and at the peers.
///  9. After finish() every rank's module is whole and nobody else's business.
/// 10. rebind(), after context::rebind() and on every rank of the new generation, makes the groups
///     anew; store and values stay. A backward pass that was under way is given up; steps begin
///     with begin_step() again. When ranks would own other parts than before: errc::not_supported
///     on every rank, and the strategy is of no use any more.
template <class S>
concept strategy = requires(S s, bool last, double x, const error& why) {
    requires std::constructible_from<S, const context&, torch::nn::Module&>;
    { s.store() } -> std::same_as<flat_store&>;
    s.begin_step();
    s.begin_micro(last);
    s.finish_backward();
    { s.squared_norm(x) } -> std::convertible_to<double>;
    s.publish();
    s.sync_buffers();
    s.begin_evaluation();
    s.end_evaluation();
    s.abort(why);
    s.finish();
    s.rebind();
};

} // namespace skein::train


// ======== skein/train/ddp.hpp, continued
#include <string_view>

namespace skein {

/// Gradients are summed over all ranks; parameters stay equal bit for bit on every rank.
///   construction broadcasts rank 0's parameters and buffers, and compares the models' layouts
///   memory 16 P bytes per rank with AdamW in float32: parameters, gradients, two states
///   cost   2(N-1)/N of the gradient bytes per rank and step, mostly during the backward pass
///   errors mismatch when the ranks' models differ; peer_lost, timeout, aborted from the transport
template <class Bucket = bucket<>, train::precision_setting... Settings>
class DDP : public train::detail::sharded_parallel {
public:
    static constexpr std::string_view name = "DDP";
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    DDP(const train::context& ctx, torch::nn::Module& module)
        : sharded_parallel(ctx, module, {.name = name, .precision = used_precision()},
                           train::detail::plan_of<Bucket>()) {}
};

static_assert(train::strategy<DDP<>>);

} // namespace skein

// ======== skein/train/description.hpp
// What an optimizer or a schedule says of itself: a name, and the settings that all ranks must have
// alike.
//
//     void describe(description& to) const { to.add("beta1", beta1).add("beta2", beta2); }


#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

/// A name, and settings in the order they were added. Numbers become the shortest text that reads
/// back as the same number.
struct description {
    std::string name{};
    std::vector<std::pair<std::string, std::string>> settings{};

    description& add(std::string what, double value);
    description& add(std::string what, std::string_view value);
    template <std::same_as<bool> T>
    description& add(std::string what, T value) {
        return add(std::move(what), std::string_view(value ? "true" : "false"));
    }
    template <std::integral T>
        requires(!std::same_as<T, bool>)
    description& add(std::string what, T value) {
        return add(std::move(what), std::string_view(std::to_string(value)));
    }
    description& add(std::string what, const char* value) {
        return add(std::move(what), std::string_view(value));
    }

    friend bool operator==(const description&, const description&) = default;
};

} // namespace skein::train


// ======== skein/train/detail/description.ipp
// Bodies of <skein/train/description.hpp>.

#include <fmt/format.h>

namespace skein::train {

SKEIN_INLINE description& description::add(std::string what, double value) {
    return add(std::move(what), std::string_view(fmt::format("{}", value)));
}

SKEIN_INLINE description& description::add(std::string what, std::string_view value) {
    settings.emplace_back(std::move(what), value);
    return *this;
}

} // namespace skein::train

// ======== skein/train/early_stopping.hpp
// Ends training when an evaluation has not improved for a while: a callback with an action and
// state.
//
//     skein::Trainer<skein::DDP<>, skein::early_stopping> trainer(
//         ctx, config, skein::early_stopping({.metric = "val_loss", .patience = 5}));
//
// What it has seen is in every checkpoint, so an interrupted run stops where an undisturbed one
// would. A run that goes on after it was stopped, or after its last step used the patience up, is
// stopped again by the next evaluation without an improvement. NaN is no improvement and never the
// best.


#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/core.h>

namespace skein {

/// Which number has to improve, and how many evaluations it may take.
struct early_stopping_options {
    std::string metric =
        "val_loss";     ///< of an evaluation: "val_loss", "val_<what the loss reports>"
    int patience = 3;   ///< evaluations in a row without an improvement, at least 1
    double least = 0.0; ///< a difference up to this is none
    bool lower_is_better = true;
};

/// The callback: stops after `patience` evaluations in a row without an improvement.
class early_stopping {
public:
    /// Throws errc::usage for options that make no sense.
    explicit early_stopping(early_stopping_options options = {}) : options_(std::move(options)) {
        if (options_.patience < 1)
            throw error(errc::usage,
                        fmt::format("early stopping: a patience of {}", options_.patience))
                .with_hint("at least 1 evaluation without an improvement ends a run");
        if (!(options_.least >= 0))
            throw error(errc::usage, fmt::format("early stopping: least is {}", options_.least))
                .with_hint("use 0 or a positive difference");
    }

    /// Throws errc::usage when the evaluation has no such number.
    train::action on_eval(const train::eval_info& e) {
        const auto* const now = report::find_metric(*e.metrics, options_.metric);
        if (now == nullptr)
            throw error(errc::usage,
                        fmt::format("early stopping: an evaluation has no '{}'", options_.metric))
                .with_hint(report::names_of(*e.metrics));
        const bool better = is_better(*now);
        if (better) {
            best_ = *now;
            best_step_ = e.step;
        }
        waited_ = better ? 0 : waited_ + 1;
        return waited_ < options_.patience ? train::action::go_on : train::action::stop;
    }

    /// NaN before the first number.
    [[nodiscard]] double best() const noexcept { return best_; }
    /// The step whose evaluation gave the best; 0 before the first number.
    [[nodiscard]] std::uint64_t best_step() const noexcept { return best_step_; }
    /// Evaluations since the best one.
    [[nodiscard]] int waited() const noexcept { return waited_; }

    /// For a person, once the patience is used up; else empty.
    [[nodiscard]] std::string stop_reason() const {
        if (waited_ < options_.patience) return {};
        const auto what = fmt::format("early stopping: {} has not improved in {} evaluation{}",
                                      options_.metric, waited_, waited_ == 1 ? "" : "s");
        if (std::isnan(best_)) return what + ", it was never a number";
        return fmt::format("{}, best {:.6g} after step {}", what, best_, best_step_);
    }

    /// "<waited> <best, as a hexadecimal float> <step>".
    [[nodiscard]] std::string state() const {
        if (std::isnan(best_)) return waited_ == 0 ? "" : fmt::format("{} nan 0", waited_);
        return fmt::format("{} {} {}", waited_, hexadecimal(best_), best_step_);
    }
    /// Throws errc::malformed for a text that is no state().
    void restore(std::string_view saved) {
        waited_ = 0;
        best_ = std::numeric_limits<double>::quiet_NaN();
        best_step_ = 0;
        if (saved.empty()) return;
        auto rest = saved;
        const auto word = [&] {
            const auto one = rest.substr(0, rest.find(' '));
            rest.remove_prefix(std::min(rest.size(), one.size() + 1));
            return one;
        };
        const bool right = read(word(), waited_) && read_double(word(), best_) &&
                           (rest.empty() || read(word(), best_step_)); // older states have none
        if (!right || !rest.empty())
            throw error(errc::malformed, fmt::format("'{}' is no state of early stopping", saved));
    }

private:
    /// Comparisons with NaN are false: it improves nothing, and the first number improves on it.
    [[nodiscard]] bool is_better(double now) const noexcept {
        if (std::isnan(best_)) return !std::isnan(now);
        return (options_.lower_is_better ? best_ - now : now - best_) > options_.least;
    }

    // to_chars and from_chars, not {:a} and strtod(): a process may have another decimal point.
    [[nodiscard]] static std::string hexadecimal(double value) {
        char text[64];
        const auto end =
            std::to_chars(text, text + sizeof text, std::abs(value), std::chars_format::hex);
        return (std::signbit(value) ? "-0x" : "0x") + std::string(text, end.ptr);
    }
    template <class T>
    [[nodiscard]] static bool read(std::string_view text, T& to) {
        const auto end = std::from_chars(text.data(), text.data() + text.size(), to);
        return end.ec == std::errc() && end.ptr == text.data() + text.size();
    }
    [[nodiscard]] static bool read_double(std::string_view text, double& to) {
        const bool negative = text.starts_with('-');
        if (negative) text.remove_prefix(1);
        if (text.starts_with("0x")) text.remove_prefix(2);
        const auto end =
            std::from_chars(text.data(), text.data() + text.size(), to, std::chars_format::hex);
        if (negative) to = -to;
        return end.ec == std::errc() && end.ptr == text.data() + text.size();
    }

    early_stopping_options options_;
    double best_ = std::numeric_limits<double>::quiet_NaN();
    std::uint64_t best_step_ = 0;
    int waited_ = 0;
};

} // namespace skein

// ======== skein/train/fsdp.hpp
// Fully sharded data parallel training (ZeRO-3): parameters, gradients and optimizer states are cut
// between the ranks, block by block.
//
//     TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>);              // marks the block
//     Trainer<FSDP<auto_wrap<Block>>> trainer(ctx, config);
//     Trainer<FSDP<auto_wrap<Block>, reshard_after_forward<false>>> other(ctx, config);
//     Trainer<FSDP<auto_wrap<Block>, precision<bf16>>> half(ctx, config);
//     // sharded inside hosts, replicated between
//     Trainer<Hybrid<auto_wrap<Block>>> hosts(ctx, config);
//
// Between hosts a block is gathered when its forward or backward begins, the next one ahead of it,
// and dropped when it has ended. On one host the ranks' parts are mapped side by side into one
// memory that all ranks compute with: nothing is gathered and no byte is there twice.
//
//   source: Zhao et al. 2023 (arXiv 2304.11277); hybrid as in MiCS, Zhang et al. 2022
//   (arXiv 2205.00119)


#include <string_view>
#include <type_traits>

namespace skein {

/// So many units are gathered ahead of the one that is computed.
template <int Units>
struct prefetch {
    static_assert(Units >= 0);
    static void apply(train::detail::shard_policy& policy) { policy.prefetch = Units; }
};

/// false: units stay gathered between forward and backward (more memory, a third less to send).
template <bool Reshard>
struct reshard_after_forward {
    static void apply(train::detail::shard_policy& policy) {
        policy.reshard_after_forward = Reshard;
    }
};

namespace train::detail {
template <class... Settings>
[[nodiscard]] shard_policy fsdp_policy(std::string_view name, bool inside_hosts) {
    shard_policy policy{.name = name,
                        .shard_states = true,
                        .shard_gradients = true,
                        .shard_parameters = true,
                        .inside_hosts = inside_hosts};
    const auto apply = [&]<class S>(std::type_identity<S>) {
        if constexpr (!precision_setting<S>) S::apply(policy);
    };
    (apply(std::type_identity<Settings>{}), ...);
    policy.precision = precision_of<Settings...>();
    return policy;
}

/// What is wrapped by size has no constructor that could end.
template <class Wrap, class... Settings>
[[nodiscard]] build_plan plan_build_of(const context& ctx, std::string_view name,
                                       bool inside_hosts) {
    if constexpr (requires(const torch::nn::Module& m) { Wrap::is_block(m); }) {
        auto plan = plan_build(ctx, fsdp_policy<Settings...>(name, inside_hosts));
        plan.is_block = [](const torch::nn::Module& m) { return Wrap::is_block(m); };
        return plan;
    } else {
        return {};
    }
}
} // namespace train::detail

/// Everything is sharded over all ranks. What belongs to no block is the root: it is gathered for
/// the whole step. After a backward pass parameters have no .grad: store().own_grads() has what
/// this rank owns.
///   Wrap   auto_wrap<Block...> or auto_wrap_size<n>; between hosts blocks have to be skein::unit
///   memory with AdamW in float32: 16 P / N bytes per rank, and two units of gradients; between
///          hosts also the parameters of the units in use, and gradients that the network has not
///          taken yet
///   cost   3(N-1)/N of the parameter bytes per rank and micro-batch; on one host (N-1)/N
///   errors those of DDP; invalid_argument when no block matches, with the types that there are;
///          not_supported for a block that would have to be gathered and is no skein::unit
template <class Wrap, class... Settings>
    requires wrap_policy<Wrap>
class FSDP : public train::detail::sharded_parallel {
public:
    static constexpr std::string_view name = "FSDP";
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    FSDP(const train::context& ctx, torch::nn::Module& module)
        : sharded_parallel(ctx, module, train::detail::fsdp_policy<Settings...>(name, false),
                           train::detail::plan_of<Wrap>()) {}

    /// For Trainer::build().
    [[nodiscard]] static train::detail::build_plan plan_build(const train::context& ctx) {
        return train::detail::plan_build_of<Wrap, Settings...>(ctx, name, false);
    }
};

/// FSDP inside each host, and each rank's part summed with its counterparts on the other hosts.
///   memory with L ranks per host: 16 P / L bytes per rank
///   cost   between hosts 2(H-1)/H of P / L per rank and micro-batch, H hosts
///   errors those of FSDP; usage when hosts have different numbers of ranks
template <class Wrap, class... Settings>
    requires wrap_policy<Wrap>
class Hybrid : public train::detail::sharded_parallel {
public:
    static constexpr std::string_view name = "Hybrid";
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    Hybrid(const train::context& ctx, torch::nn::Module& module)
        : sharded_parallel(ctx, module, train::detail::fsdp_policy<Settings...>(name, true),
                           train::detail::plan_of<Wrap>()) {}

    /// For Trainer::build().
    [[nodiscard]] static train::detail::build_plan plan_build(const train::context& ctx) {
        return train::detail::plan_build_of<Wrap, Settings...>(ctx, name, true);
    }
};

static_assert(train::strategy<FSDP<auto_wrap_size<1>>> &&
              train::strategy<Hybrid<auto_wrap_size<1>>>);

} // namespace skein

// ======== skein/train/input.hpp
// Where batches come from: samples by number, or a stream that deals its own.
//
// Data that can be asked for any sample by its number is a data_source: the trainer shuffles, deals
// to the ranks and keeps the place, exactly for any number of workers. What can only be read on
// (files too large for an index, a service, generated text) is a batch_stream: each rank has its
// own and asks it for its share of every step.
//
//     struct lines {
//         // nothing: the epoch ends
//         std::optional<text_batch> next(const skein::train::stream_share& share);
//         std::string state() const;                     // where it stands, for checkpoints
//         void restore(std::string_view state);          // goes on from there
//     };
//
// With run_config::prefetch_batches > 0 both are called on a thread of their own, one call at a
// time, while the step before computes; never during an evaluation. They must not draw from torch's
// default generator there: its numbers belong to the model. The trainer looks whether the first
// step's batches do; if so it makes them where it computes, as with prefetch_batches = 0, so that
// runs repeat.

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace skein::train {

/// Samples by number. Laws: batch(ids) depends on ids alone; every id is below size().
template <class D>
concept data_source = requires(const D& data, std::span<const std::uint64_t> ids) {
    { data.size() } -> std::convertible_to<std::uint64_t>;
    data.batch(ids);
};

/// What one rank asks a stream for: one micro-batch.
struct stream_share {
    int rank = 0, world_size = 1;
    std::uint64_t samples = 0; ///< wanted; the last batch of an epoch may have fewer
    /// Where these samples begin in the global batch of the step, and how many that has.
    std::uint64_t begin = 0, global_batch = 0;
    bool is_last = true; ///< of the micro-batches that this rank asks for in this step
    std::uint64_t epoch =
        0; ///< a larger one than before: begin the stream anew, whatever is left of it
};

/// Batches in an order of the stream's own. Laws:
///  1. next() gives nothing at the end of share.epoch, and again when asked for that epoch once
///     more.
///  2. After restore(s) of s = state() the same calls give the same batches; it may be called at
///     any time.
///  3. A batch has share.samples samples, unless it says how many: a member `samples`, a number or a
///     function; or the stream does: samples(batch). Ranks share no sample: that is the stream's
///     own business. A batch of no samples is left out of its step; a step that has none on any
///     rank is no step.
/// A stream may have more, each looked for by name:
///   size()       samples of an epoch, if every one of them becomes a row, else 0; epochs then have
///                a length
///   describe()   what it is, in one line: compared between the ranks, and with the checkpoint that
///                a run goes on from
///   reads_ahead  true (static, bool): it makes batches ahead itself, so that nobody else need do
///                so; next() may then be called on the thread that computes
/// An epoch ends on all ranks with the first rank whose stream has ended: last_batch::shorten
/// trains on what the others were given for that step, last_batch::drop does not, last_batch::carry
/// is refused.
template <class S>
concept batch_stream =
    requires(S& stream, const S& fixed, const stream_share& share, std::string_view saved) {
        { stream.next(share).has_value() } -> std::convertible_to<bool>;
        *stream.next(share);
        { fixed.state() } -> std::convertible_to<std::string>;
        stream.restore(saved);
    };

namespace detail {

template <class D>
struct batch_type {};
template <data_source D>
struct batch_type<D> {
    using type = std::remove_cvref_t<decltype(std::declval<const D&>().batch(
        std::span<const std::uint64_t>{}))>;
};
template <batch_stream S>
    requires(!data_source<S>)
struct batch_type<S> {
    using type = std::remove_cvref_t<decltype(*std::declval<S&>().next(stream_share{}))>;
};

/// Samples of a stream's batch.
template <class Batch>
std::uint64_t samples_of(const Batch& batch, std::uint64_t asked) {
    if constexpr (requires {
                      { batch.samples() } -> std::convertible_to<std::uint64_t>;
                  })
        return static_cast<std::uint64_t>(batch.samples());
    else if constexpr (requires {
                           { batch.samples } -> std::convertible_to<std::uint64_t>;
                       })
        return static_cast<std::uint64_t>(batch.samples);
    else
        return asked;
}

/// A stream's batch, whose type the loop does not know.
struct any_batch {
    std::shared_ptr<const void> value; ///< null: the stream has ended
    std::uint64_t samples = 0;
};

/// The user's data behind virtual calls; refers to it.
class input_source {
public:
    virtual ~input_source() = default;
    [[nodiscard]] virtual bool is_stream() const { return false; }
    [[nodiscard]] virtual bool reads_ahead() const { return false; }
    /// Of a stream, if it says what it is.
    [[nodiscard]] virtual std::string describe() const { return {}; }
    [[nodiscard]] virtual std::uint64_t size() const { return 0; }
    [[nodiscard]] virtual std::shared_ptr<const void> batch(std::span<const std::uint64_t>) {
        return {};
    }
    [[nodiscard]] virtual any_batch next(const stream_share&) { return {}; }
    [[nodiscard]] virtual std::string state() const { return {}; }
    virtual void restore(std::string_view) {}
};

template <data_source D>
class numbered_input final : public input_source {
public:
    explicit numbered_input(const D& data) : data_(data) {}
    std::uint64_t size() const override { return static_cast<std::uint64_t>(data_.size()); }
    std::shared_ptr<const void> batch(std::span<const std::uint64_t> ids) override {
        return std::make_shared<const typename batch_type<D>::type>(data_.batch(ids));
    }

private:
    const D& data_;
};

template <batch_stream S>
class stream_input final : public input_source {
public:
    explicit stream_input(S& stream) : stream_(stream) {}
    bool is_stream() const override { return true; }
    bool reads_ahead() const override {
        if constexpr (requires { requires S::reads_ahead; })
            return true;
        else
            return false;
    }
    std::string describe() const override {
        if constexpr (requires {
                          { std::as_const(stream_).describe() } -> std::convertible_to<std::string>;
                      })
            return std::as_const(stream_).describe();
        else
            return {};
    }
    std::uint64_t size() const override {
        if constexpr (requires {
                          { std::as_const(stream_).size() } -> std::convertible_to<std::uint64_t>;
                      })
            return static_cast<std::uint64_t>(std::as_const(stream_).size());
        else
            return 0;
    }
    any_batch next(const stream_share& share) override {
        using type = typename batch_type<S>::type;
        auto got = stream_.next(share);
        if (!got.has_value()) return {};
        std::uint64_t samples = 0;
        if constexpr (requires {
                          { stream_.samples(*got) } -> std::convertible_to<std::uint64_t>;
                      })
            samples = static_cast<std::uint64_t>(stream_.samples(*got));
        else
            samples = samples_of(*got, share.samples);
        return {std::make_shared<const type>(*std::move(got)), samples};
    }
    std::string state() const override { return std::as_const(stream_).state(); }
    void restore(std::string_view saved) override { stream_.restore(saved); }

private:
    S& stream_;
};

/// What is both is asked by number.
template <class D>
[[nodiscard]] std::unique_ptr<input_source> make_input(D& data) {
    if constexpr (data_source<std::remove_const_t<D>>)
        return std::make_unique<numbered_input<std::remove_const_t<D>>>(data);
    else
        return std::make_unique<stream_input<D>>(data);
}

} // namespace detail

/// What can be trained on.
template <class D>
concept train_input = data_source<std::remove_cvref_t<D>> || batch_stream<std::remove_cvref_t<D>>;

/// The type of the batches that a data set or stream gives.
template <class D>
using batch_of = typename detail::batch_type<std::remove_cvref_t<D>>::type;

} // namespace skein::train

// ======== skein/train/launch.hpp
// launch(): one main() for every way a training program can start.
//
//     int main(int argc, char** argv) {
//         auto config = parse(argc, argv);
//         const auto run = [&](skein::train::context& ctx) { train(config, ctx); };
//         return skein::train::launch(config, run);
//     }
//
// As a rank of srun, mpirun, torchrun or another launcher it joins that world. Started by hand with
// config.scaling.workers > 1 it becomes the supervisor of so many copies of itself and restarts
// them after a failure. Otherwise it runs the function in this process. On a host that helps
// (SageMaker's groups, spmd/environment.hpp) it makes this process a node for the ranks' helpers,
// until their job is over.


#include <functional>

namespace skein {
class error;
namespace spmd {
struct launch_environment;
}
} // namespace skein

namespace skein::train {

/// What a rank does: trains, in its place in the world.
using rank_function = std::function<void(context&)>;

/// Runs body in the right place; blocks until the job is done. Errors are printed to stderr, each
/// once, with what to do next.
///   result  the exit code: 0 done, 1 failed, 2 usage, 130 stopped by SIGINT, 143 by SIGTERM
///   errors  not_supported: several workers in a task or an actor; all others are told on stderr
///           and in the result
[[nodiscard]] int launch(const run_config& config, const rank_function& body);

/// Only one rank of a world that exists already; launch() calls it.
[[nodiscard]] int run_as_rank(const spmd::launch_environment& where, const run_config& config,
                              const rank_function& body);

/// The exit code for a failure: 2 for a usage error, else 1.
[[nodiscard]] int exit_code_of(const error& why) noexcept;

} // namespace skein::train


// ======== skein/train/detail/launch.ipp
// The three ways of launch().


#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train {
namespace detail {

/// What LibTorch throws carries forty lines of a stack trace behind this line.
SKEIN_INLINE std::string without_trace(std::string_view text) {
    return printable_lines(text.substr(0, text.find("\nException raised from ")));
}

SKEIN_INLINE void print_error(const run_config& config, std::string_view who, const error& why) {
    // A live progress line may stand there: end it first.
    if (::isatty(STDERR_FILENO) != 0 && config.output == output_mode::automatic)
        std::fputc('\n', stderr);
    if (who.empty()) {
        fmt::print(stderr, "error: {}\n", without_trace(why.what()));
    } else {
        fmt::print(stderr, "error: {}: {}\n", who, without_trace(why.what()));
    }
    std::fflush(stderr);
}

/// A line to a person, to a program in its language, and nothing to nobody.
SKEIN_INLINE void say_note(const run_config& config, const std::string& text) {
    if (config.output == output_mode::quiet) return;
    const bool json = config.output == output_mode::json;
    const bool live = config.output == output_mode::automatic && ::isatty(STDERR_FILENO) != 0;
    const auto line = json ? dump_json(ordered_json{{"event", "note"}, {"text", text}}) + "\n"
                           : (live ? "\r\x1b[K" : "") + text + "\n";
    auto* to = json ? stdout : stderr;
    std::fwrite(line.data(), 1, line.size(), to);
    std::fflush(to);
}

/// Says that a stop request was heard.
SKEIN_INLINE void say_stopping(const run_config& config) {
    const bool saves = config.checkpoint.enabled && config.checkpoint.on_stop;
    say_note(config, fmt::format("stopping after this step{}; Ctrl-C again ends at once",
                                 saves ? " and saving a checkpoint" : ""));
}

/// Says so at the moment the signal comes, from a thread of its own: the step may be a long one.
class stop_notice {
public:
    stop_notice(const stop_signals& stops, const run_config& config)
        : stop_fd_(stops.fd()), config_(&config), control_("stop-notice") {
        control_.run([this] { return begin(); });
    }
    ~stop_notice() {
        control_.run([this] { return end(); });
    }
    stop_notice(const stop_notice&) = delete;
    stop_notice& operator=(const stop_notice&) = delete;

private:
    task<void> begin() {
        watching_ = std::make_unique<scope>();
        watching_->spawn(watch());
        co_return;
    }
    task<void> watch() {
        auto asked = net::wait_readable(control_.loop(), stop_fd_);
        co_await asked;
        say_stopping(*config_);
    }
    task<void> end() {
        watching_->cancel();
        auto joined = as_result(watching_->join());
        (void)co_await joined; // without the notice the run is what it was
        watching_.reset();
    }

    int stop_fd_;
    const run_config* config_;
    net::loop_thread control_;
    std::unique_ptr<scope> watching_; // lives on the thread
};

/// The communicator that was asked for.
SKEIN_INLINE std::string comm_model_of(const run_config& config) {
    auto model = dist::checked_comm_model(config.communicator);
    if (!model) throw error(errc::usage, model.error().text()).with_hint(model.error().hint());
    return *model;
}

SKEIN_INLINE int run_alone(const run_config& config, const rank_function& body) {
    const stop_signals stops;
    try {
        validate(config, 1);
        (void)comm_model_of(config); // a mistake also where nobody is to talk to
        const stop_notice notice(stops, config);
        auto here = context::single();
        here.watch_stop_flag(&stops.asked(), [&stops] { return stops.which(); });
        body(here);
        return stops.exit_code();
    } catch (...) {
        const auto why = to_error(std::current_exception());
        print_error(config, "", why);
        return exit_code_of(why);
    }
}

/// Its ranks would be this program started again, whose main is the driver's, and would never reach
/// launch().
SKEIN_INLINE void refuse_in_task(const std::string& what) {
    const auto* const hint = "train in this process alone, with scaling.workers = 1 or a Trainer "
                             "on context::single(); start a training of several workers from main, "
                             "as a program of its own";
    loop::refuse_inside(what, hint);
    if (!program::is_worker()) return;
    throw error(errc::not_supported, "not supported: " + what + " in a task or an actor")
        .with_hint(hint);
}

/// What launch() and run() ask of a supervisor alike. `config` outlives it.
SKEIN_INLINE spmd::supervisor_options supervisor_options_of(const run_config& config) {
    spmd::supervisor_options options;
    options.workers = config.scaling.workers;
    options.max_failures = config.failure.max_failures;
    options.stop_grace = config.failure.stop_grace;
    options.backoff = config.failure.backoff;
    options.on_restart = [](const error& why, int restart, int most) {
        fmt::print(
            stderr,
            "{}; starting again, from the last checkpoint if there is one (restart {} of {})\n",
            without_trace(why.what()), restart, most);
        std::fflush(stderr);
    };
    options.on_stop = [&] { say_stopping(config); };
    options.threads = std::max(config.scaling.threads, 1);
    return options;
}

SKEIN_INLINE int run_supervised(const run_config& config) {
    try {
        validate(config, config.scaling.workers);
        (void)comm_model_of(config);
        const auto outcome = spmd::supervise(supervisor_options_of(config));
        const bool stopped = outcome.stop_signal != 0;
        // A stop that went wrong has saved nothing, perhaps: say what happened.
        if (outcome.failure && outcome.failure->code() != errc::cancelled)
            print_error(config, "", *outcome.failure);
        else if (outcome.failure && config.output != output_mode::quiet)
            say_note(config,
                     fmt::format("stopped by {}: {}", proc::signal_name(outcome.stop_signal),
                                 outcome.failure->text()));
        if (stopped) return 128 + outcome.stop_signal;
        return outcome.failure ? exit_code_of(*outcome.failure) : exit_code::done;
    } catch (...) {
        const auto why = to_error(std::current_exception());
        print_error(config, "", why);
        return exit_code_of(why);
    }
}

/// A number of workers that was asked for, where a launcher has started another.
SKEIN_INLINE void say_unused_workers(const spmd::launch_environment& where,
                                     const run_config& config) {
    if (spmd::is_supervised() || where.rank != 0 || config.scaling.workers == 1 ||
        config.scaling.workers == where.world_size)
        return;
    say_note(config,
             fmt::format("note: {} workers were asked for, but {} has started a world of {}",
                         config.scaling.workers, where.source, where.world_size));
}

/// Who names a cluster for tasks and actors expects it of a training, too.
SKEIN_INLINE void say_unused_cluster(const run_config& config) {
    const char* const address = std::getenv("SKEIN_ADDRESS");
    const std::string_view at = address != nullptr ? address : "";
    if (at.empty() || at == "local" || spmd::is_supervised() || program::is_worker()) return;
    say_note(config, fmt::format("note: a training does not use the cluster at {} (SKEIN_ADDRESS) "
                                 "yet: it runs on this host",
                                 at));
}

/// What the communicator throws has the rank and the operation for its place; mostly it is what
/// another rank has told through it, and that one says it better.
[[nodiscard]] SKEIN_INLINE bool came_through_communicator(const error& why) {
    return why.where().starts_with("rank ") && why.where().find(" #") != std::string::npos;
}

/// Nothing was trained yet and no other rank or host is to blame: another start would come to the
/// same. After a restart the start has worked once, so there it is worth another try.
[[nodiscard]] SKEIN_INLINE error before_first_step(const error& why) {
    auto lasting = spmd::is_lasting(why.code()) ? why
                                                : error(errc::invalid_argument, why.text())
                                                      .with_where(why.where())
                                                      .with_cause(why.cause())
                                                      .with_hint(why.hint());
    if (!spmd::is_lasting(why.code()))
        lasting.with_hint((why.hint().empty() ? "" : why.hint() + "; ") +
                          "thrown before the first step: not tried again");
    return lasting;
}

/// Everything of a rank that has to be undone in order.
///   stops  null: nobody has taken the signals
///   comm_name  of its communicator, of each run in one world another
SKEIN_INLINE void train_as_rank(spmd::joined_group& world, const spmd::launch_environment& where,
                                const run_config& config, const stop_signals* stops,
                                const std::string& comm_name, const rank_function& body) {
    dist::comm_options options;
    options.name = comm_name;
    options.model = comm_model_of(config);
    options.limits.deadline = config.failure.collective_timeout;
    if (const char* name = std::getenv("SKEIN_ADVERTISE")) options.advertise = name;
    auto comm = dist::make_comm_thread(world, options); // a lost rank aborts it

    world_info info;
    info.rank = where.rank;
    info.world_size = where.world_size;
    info.local_rank = where.local_rank;
    info.local_size = where.local_size;
    info.attempt = where.attempt;
    info.host = world.host();
    info.job_id = where.job_id;
    if (!spmd::is_supervised()) info.launcher = where.source;
    context here(std::move(info), &world, comm.get());
    here.use_options(options);
    if (stops != nullptr)
        here.watch_stop_flag(&stops->asked(), [stops] { return stops->which(); });
    try {
        body(here);
    } catch (...) {
        const auto why = to_error(std::current_exception());
        const bool mine = !may_be_echo(why.code()) && !came_through_communicator(why);
        if (mine && spmd::is_supervised() && !here.has_begun() && where.attempt == 0)
            throw before_first_step(why);
        throw;
    }
}

/// What a rank is to others on its host.
SKEIN_INLINE void begin_as_rank(const spmd::launch_environment& where) {
    proc::name_process(fmt::format("rank{}", where.rank));
    proc::print_by_lines(); // it may be killed
}

} // namespace detail

SKEIN_INLINE int exit_code_of(const error& why) noexcept {
    return why.code() == errc::usage ? exit_code::usage : exit_code::failed;
}

namespace detail {

/// A rank from its meeting to its leave; gives the exit code of its process.
///   world  what `life` makes when the ranks meet
SKEIN_INLINE int live_as_rank(const spmd::launch_environment& where, const run_config& config,
                              const stop_signals& stops,
                              std::unique_ptr<spmd::joined_group>& world,
                              const std::function<void()>& life) {
    const bool supervised = spmd::is_supervised();
    const auto who = fmt::format("rank {} of {}", where.rank, where.world_size);
    try {
        life();
        world->leave();
        return stops.exit_code();
    } catch (...) {
        const auto why = to_error(std::current_exception());
        if (!world && stops.asked()) {
            if (!supervised)
                fmt::print(stderr, "{}: stopped by {} while the ranks were meeting\n", who,
                           proc::signal_name(stops.which()));
            return stops.exit_code();
        }
        // A broken collective is mostly the echo of what happened to another rank: let that one
        // tell.
        const bool may_be = may_be_echo(why.code()) || came_through_communicator(why);
        const bool echo = world && may_be && world->wait_lost(time_constants::lan().echo_wait);
        if (world && !echo) world->fail(why);
        if (supervised)
            proc::leave_last_words(why.what()); // in case nobody is told through the group
        // The supervisor prints what it was told; here only what nobody else will.
        if (!supervised || !world) print_error(config, who, why);
        return exit_code_of(why);
    }
}

} // namespace detail

SKEIN_INLINE int run_as_rank(const spmd::launch_environment& where, const run_config& config,
                             const rank_function& body) {
    const stop_signals stops;
    const bool supervised = spmd::is_supervised();
    detail::begin_as_rank(where);
    std::unique_ptr<spmd::joined_group> world;
    return detail::live_as_rank(where, config, stops, world, [&] {
        const auto secret = spmd::group_token();
        validate(config, where.world_size);
        spmd::joined_group_options meeting;
        meeting.settings = settings_of(config);
        meeting.stop_fd = stops.fd();
        world = std::make_unique<spmd::joined_group>(where, secret, std::move(meeting));
        std::optional<detail::stop_notice> notice; // a supervisor says it itself
        if (!supervised && where.rank == 0) notice.emplace(stops, config);
        detail::train_as_rank(*world, where, config, &stops, "world", body);
    });
}

namespace detail {

/// What this program can be where other hosts help.
SKEIN_INLINE const program::cluster_roles& roles_for_helpers() {
    if (const auto* const roles = program::roles_of_program()) return *roles;
    throw error(errc::not_supported,
                "not supported: hosts that help a program that was compiled header-only without "
                "the cluster")
        .with_hint("include <skein/program/program.hpp> beside <skein/train.hpp>, or link "
                   "skein::runtime");
}

/// A host that helps is a node of rank 0's head, and no rank. Gives the exit code.
SKEIN_INLINE int run_as_helper(const spmd::launch_environment& where, const run_config& config) {
    try {
        return roles_for_helpers().help(where);
    } catch (...) {
        const auto why = to_error(std::current_exception());
        print_error(config, "", why);
        return exit_code_of(why);
    }
}

/// A rank beside the hosts that help its job.
SKEIN_INLINE int run_with_helpers(const spmd::launch_environment& where, const run_config& config,
                                  const rank_function& body) {
    std::unique_ptr<program::job_with_helpers> job;
    try {
        job = roles_for_helpers().take_helpers(where);
    } catch (...) {
        const auto why = to_error(std::current_exception());
        print_error(config, fmt::format("rank {} of {}", where.rank, where.world_size), why);
        return exit_code_of(why);
    }
    const int code = run_as_rank(where, config, body);
    // After a failure the launcher may start the ranks again: hosts that help wait for that.
    if (code == exit_code::done || code > 128) job->end();
    return code;
}

} // namespace detail

SKEIN_INLINE int launch(const run_config& config, const rank_function& body) {
    serve_if_worker(); // of a session that a rank has opened: it is no rank, nor a supervisor
    spmd::launch_environment where;
    try {
        if (spmd::is_for_entry())
            throw error(errc::not_supported, "not supported: launch() in a rank of a run")
                .with_hint("a program has either launch() or runs of its own in its main");
        spmd::take_launch_variables();
        where = spmd::discover();
    } catch (const error& why) {
        detail::print_error(config, "", why);
        return exit_code::usage;
    }
    if (where.role == spmd::host_role::helps) return detail::run_as_helper(where, config);
    detail::say_unused_cluster(config);
    if (where.is_launched()) {
        detail::say_unused_workers(where, config);
        if (where.helper_hosts > 0) return detail::run_with_helpers(where, config, body);
        return run_as_rank(where, config, body);
    }
    if (config.scaling.workers == 1) return detail::run_alone(config, body);
    detail::refuse_in_task(fmt::format("launch() with {} workers", config.scaling.workers));
    return detail::run_supervised(config);
}

} // namespace skein::train

// ======== skein/train/loss.hpp
// A loss that is a mean over something other than samples.
//
// A loss that returns a tensor is the mean over the samples it was given, and the trainer weights
// it by their number. Where samples count unequally (tokens that are not masked, boxes in an image)
// the mean of means is not the mean: return the sum and the weight, and the trainer divides the
// summed gradients of all ranks and micro-batches by the summed weight, once.
//
//     const auto loss = [](Net& net, const batch& b) -> skein::weighted_loss {
//         const auto nats_BT = per_token(net->forward(b.inputs_BT), b.targets_BT);
//         return {(nats_BT * b.mask_BT).sum(), b.mask_BT.sum()};
//     };


namespace skein {

/// What a loss function may return in place of a mean. A weight of 0 (everything masked) is fine as
/// long as some rank has more in every step.
struct weighted_loss {
    at::Tensor sum{};    ///< one number, with a gradient
    at::Tensor weight{}; ///< one number, at least 0; no gradient goes through it
};

} // namespace skein

// ======== skein/train/loss_scale.hpp
// The scale of a loss in float16: large enough that small gradients do not vanish, halved when one
// overflows.
//
// All ranks see the norm of the summed gradients and so decide alike; a step whose norm is not
// finite is left out. Scales are powers of two: dividing by one changes no bit of a gradient.
//
//   source: Micikevicius et al. 2018 (arXiv 1710.03740) section 3.2; the numbers as in
//   torch.amp.GradScaler


#include <algorithm>
#include <cstdint>

namespace skein::train {

/// The scale of one run; every rank holds its own, and they stay equal.
class loss_scale {
public:
    /// What a loss is multiplied by.
    [[nodiscard]] double value() const noexcept { return value_; }
    /// Steps without an overflow since the scale has changed.
    [[nodiscard]] std::uint64_t good_steps() const noexcept { return good_; }
    /// Steps with one in a row.
    [[nodiscard]] int overflows() const noexcept { return overflows_; }

    /// After a step whose gradients were finite, or not.
    void update(bool finite) noexcept {
        if (!finite) {
            value_ = std::max(least, value_ * 0.5);
            good_ = 0;
            overflows_ += 1;
            return;
        }
        overflows_ = 0;
        if (++good_ < interval) return;
        value_ *= 2.0;
        good_ = 0;
    }
    /// From a checkpoint.
    void restore(double value, std::uint64_t good_steps) noexcept {
        value_ = value;
        good_ = good_steps;
    }

    static constexpr std::uint64_t interval = 2000; ///< good steps before it is doubled
    static constexpr int most_overflows = 100;      ///< in a row: then it is no matter of scale
    /// A smaller one would take gradients out of the range of float16 at its other end.
    static constexpr double least = 1.0;

private:
    double value_ = 65536.0;
    std::uint64_t good_ = 0;
    int overflows_ = 0;
};

} // namespace skein::train

// ======== skein/train/memory_plan.hpp
// What a strategy keeps of a model in each rank's memory: by formula before anything is allocated,
// and counted.
//
//     const auto sizes = skein::train::measure_units(*model);
//     for (const auto& need : skein::train::plan_memory(sizes, {.ranks = 4}))
//         fmt::print("{} {}\n", need.strategy, need.total());
//
// Parameters, gradients, optimizer states and gathered units only. Activations depend on batch and
// model and are not guessed at, nor is what LibTorch and the program need for themselves (some 200
// MB). A page that several ranks have mapped counts once per host, in equal parts: as PSS counts
// it.


// ======== skein/train/optimizer.hpp
// The optimizer of a run over a flat store: a few fused kernel calls per step instead of several
// per parameter.
//
// Neighbouring parameters that take the same update form one run; the optimizer's kernel walks the
// runs once, reading and writing every element once, with clipping by norm folded in as a gradient
// scale. Vectors (biases, norms) are not decayed unless asked for.
//
//     flat_optimizer opt(AdamW{.weight_decay = 0.1}, strategy.store());
//     opt.step(lr, clip_scale(norm, 1.0));


// ======== skein/train/optimizers.hpp
// What an optimizer is, and those that come with skein: AdamW, Adam, SGD, Adagrad and Lion.
//
// An optimizer is a struct of settings that names its states and updates runs of owned memory. One
// of a user's own is written as those below are, works under every strategy and is saved in
// checkpoints:
//
//     struct sign_descent {
//         double weight_decay = 0.0;
//         static constexpr std::string_view name = "sign_descent";
//         std::vector<optimizer_state> states() const { return {}; }
//         void describe(description& to) const { to.add("weight decay", weight_decay); }
//         void update(const update_runs& runs, const update_values& v) const {
//             runs.for_each([&](const run_part& r) {
//                 for (std::size_t i = 0; i < r.params.size(); ++i)
//                     r.params[i] -= float(v.lr) * float((r.grads[i] > 0) - (r.grads[i] < 0));
//             });
//         }
//     };


#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

// P elements of a run

/// A state of an optimizer: one float32 number per parameter element.
struct optimizer_state {
    std::string name;     ///< in checkpoints: optim.<name>.<parameter>
    double initial = 0.0; ///< of every element before the first step
};

/// Neighbouring elements of one run, and their states in the order of states().
struct run_part {
    std::span<float> params, grads;
    std::vector<std::span<float>> states;
};

/// Runs of memory that take the same update: neighbouring parameters as one long tensor each. All
/// are float32, contiguous, on the CPU, begin at a multiple of 64 bytes and are a multiple of 16
/// elements long; padding between parameters has the value and the gradient zero and must keep the
/// value.
struct update_runs {
    std::vector<at::Tensor> params, grads;       ///< by run, P each
    std::vector<std::vector<at::Tensor>> states; ///< by state, then by run

    /// Calls work with consecutive parts of all runs, on all compute threads.
    void for_each(const std::function<void(const run_part&)>& work) const;
    /// One more run; of as many states as those before.
    ///   grads  undefined where there are none
    void push(at::Tensor params_P, at::Tensor grads_P, std::vector<at::Tensor> states_P);

private:
    /// Where it lies, beside the tensors: their own bookkeeping is spread over memory.
    struct place {
        float *params, *grads;
        std::int64_t size;
    };
    std::vector<place> places_;
    std::vector<float*> state_places_; // of the first run, then of the second
};

/// The numbers of one update.
struct update_values {
    std::uint64_t step = 1; ///< of these parameters, from 1; steps that left them out do not count
    double lr = 0.0;
    double weight_decay = 0.0; ///< 0 for what is not decayed
    double grad_scale = 1.0;   ///< gradients are divided by it first
};

/// Laws:
///  1. What update() does to an element depends on that element of the parameters, gradients and
///     states and on the values alone: however a strategy cuts the parameters, the bits are the
///     same.
///  2. describe() names every setting that changes the update; the ranks compare them.
///  3. What it leaves in the gradients does not matter.
/// Optional members: `weight_decay` and `decay_vectors` (what update_values::weight_decay is made
/// of; without the second, parameters of fewer than 2 dimensions are not decayed), and check(),
/// which throws errc::usage for settings that make no sense.
template <class O>
concept optimizer =
    std::copy_constructible<O> &&
    requires(const O& o, description& to, const update_runs& runs, const update_values& values) {
        { O::name } -> std::convertible_to<std::string_view>;
        { o.states() } -> std::convertible_to<std::vector<optimizer_state>>;
        o.describe(to);
        o.update(runs, values);
    };

} // namespace skein::train

namespace skein {

/// Adam with decoupled weight decay. The learning rate comes from the schedule.
///   source: Loshchilov and Hutter 2019 (arXiv 1711.05101); ATen native/FusedAdam.cpp
struct AdamW {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    bool decay_vectors = false; ///< also decay parameters of fewer than 2 dimensions

    static constexpr std::string_view name = "adamw";
    [[nodiscard]] std::vector<train::optimizer_state> states() const;
    void check() const;
    void describe(train::description& to) const;
    void update(const train::update_runs& runs, const train::update_values& values) const;
};

/// Adam, its weight decay added to the gradient.
///   source: Kingma and Ba 2015 (arXiv 1412.6980); torch.optim.Adam
struct Adam {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.0;
    bool decay_vectors = false;

    static constexpr std::string_view name = "adam";
    [[nodiscard]] std::vector<train::optimizer_state> states() const;
    void check() const;
    void describe(train::description& to) const;
    void update(const train::update_runs& runs, const train::update_values& values) const;
};

/// Stochastic gradient descent, its weight decay added to the gradient.
///   source: torch.optim.SGD; ATen native/FusedSGD.cpp
struct SGD {
    double momentum = 0.0;
    bool nesterov = false;
    double weight_decay = 0.0;
    bool decay_vectors = false;

    static constexpr std::string_view name = "sgd";
    [[nodiscard]] std::vector<train::optimizer_state> states() const;
    void check() const;
    void describe(train::description& to) const;
    void update(const train::update_runs& runs, const train::update_values& values) const;
};

/// Rates that fall with the sum of the squared gradients; weight decay added to the gradient.
///   rate of step t = lr / (1 + (t - 1) * lr_decay)
///   source: Duchi et al. 2011 (JMLR 12); torch.optim.Adagrad
struct Adagrad {
    double lr_decay = 0.0;
    double eps = 1e-10;
    double initial_sum = 0.0; ///< of the squares
    double weight_decay = 0.0;
    bool decay_vectors = false;

    static constexpr std::string_view name = "adagrad";
    [[nodiscard]] std::vector<train::optimizer_state> states() const;
    void check() const;
    void describe(train::description& to) const;
    void update(const train::update_runs& runs, const train::update_values& values) const;
};

/// The sign of a mean of momentum and gradient, with decoupled weight decay; half of Adam's state.
/// Rates are 3 to 10 times smaller than AdamW's, weight decays as much larger.
///   p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p)
///   m = beta2 * m + (1 - beta2) * g
///   source: Chen et al. 2023 (arXiv 2302.06675) algorithm 2
struct Lion {
    double beta1 = 0.9;
    double beta2 = 0.99;
    double weight_decay = 0.0;
    bool decay_vectors = false;

    static constexpr std::string_view name = "lion";
    [[nodiscard]] std::vector<train::optimizer_state> states() const;
    void check() const;
    void describe(train::description& to) const;
    void update(const train::update_runs& runs, const train::update_values& values) const;
};

} // namespace skein

namespace skein::train {

/// Any optimizer, as a value.
class any_optimizer {
public:
    template <class O>
        requires(!std::same_as<std::remove_cvref_t<O>, any_optimizer>) &&
                optimizer<std::remove_cvref_t<O>>
    explicit any_optimizer(O&& how)
        : held_(std::make_shared<const model<std::remove_cvref_t<O>>>(std::forward<O>(how))) {}

    [[nodiscard]] std::string name() const { return held_->name(); }
    [[nodiscard]] std::vector<optimizer_state> states() const { return held_->states(); }
    /// The name is that of the optimizer.
    [[nodiscard]] description describe() const;
    void check() const { held_->check(); }
    /// Of a parameter with so many dimensions.
    [[nodiscard]] double weight_decay(std::size_t dims) const { return held_->weight_decay(dims); }
    void update(const update_runs& runs, const update_values& values) const {
        held_->update(runs, values);
    }

private:
    struct base {
        virtual ~base() = default;
        [[nodiscard]] virtual std::string name() const = 0;
        [[nodiscard]] virtual std::vector<optimizer_state> states() const = 0;
        virtual void describe(description& to) const = 0;
        virtual void check() const = 0;
        [[nodiscard]] virtual double weight_decay(std::size_t dims) const = 0;
        virtual void update(const update_runs& runs, const update_values& values) const = 0;
    };
    template <class O>
    struct model final : base {
        explicit model(O from) : how(std::move(from)) {}
        [[nodiscard]] std::string name() const override {
            return std::string(std::string_view(O::name));
        }
        [[nodiscard]] std::vector<optimizer_state> states() const override { return how.states(); }
        void describe(description& to) const override { how.describe(to); }
        void check() const override {
            if constexpr (requires { how.check(); }) how.check();
        }
        [[nodiscard]] double weight_decay(std::size_t dims) const override {
            bool decays = dims >= 2;
            if constexpr (requires { how.decay_vectors; }) decays = decays || how.decay_vectors;
            if constexpr (requires { how.weight_decay; })
                return decays ? how.weight_decay : 0.0;
            else
                return 0.0;
        }
        void update(const update_runs& runs, const update_values& values) const override {
            how.update(runs, values);
        }
        O how;
    };

    std::shared_ptr<const base> held_;
};

} // namespace skein::train


// ======== skein/train/detail/optimizers.ipp
// Bodies of <skein/train/optimizers.hpp>.


#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

namespace skein::train {

SKEIN_INLINE void update_runs::push(at::Tensor params_P, at::Tensor grads_P,
                                    std::vector<at::Tensor> states_P) {
    const auto data = [](const at::Tensor& t) {
        return t.defined() ? static_cast<float*>(t.mutable_data_ptr()) : nullptr;
    };
    places_.push_back({data(params_P), data(grads_P), params_P.numel()});
    params.push_back(std::move(params_P));
    if (grads_P.defined()) grads.push_back(std::move(grads_P));
    states.resize(states_P.size());
    for (std::size_t k = 0; k < states_P.size(); ++k) {
        state_places_.push_back(data(states_P[k]));
        states[k].push_back(std::move(states_P[k]));
    }
}

SKEIN_INLINE void update_runs::for_each(const std::function<void(const run_part&)>& work) const {
    constexpr std::int64_t line = flat_alignment, grain = (1 << 15) / line;
    const auto call = [&](run_part& part, std::size_t run, std::int64_t begin, std::int64_t end) {
        const auto& at = places_[run];
        const auto first = begin * line;
        const auto count = static_cast<std::size_t>(std::min(end * line, at.size) - first);
        part.params = {at.params + first, count};
        if (at.grads != nullptr) part.grads = {at.grads + first, count};
        for (std::size_t k = 0; k < part.states.size(); ++k)
            part.states[k] = {state_places_[run * part.states.size() + k] + first, count};
        work(part);
    };
    run_part mine{{}, {}, std::vector<std::span<float>>(states.size())};
    for (std::size_t r = 0; r < places_.size(); ++r) {
        const auto lines = (places_[r].size + line - 1) / line;
        if (lines <= grain) {
            call(mine, r, 0, lines);
            continue;
        }
        at::parallel_for(0, lines, grain, [&](std::int64_t begin, std::int64_t end) {
            run_part part{{}, {}, std::vector<std::span<float>>(states.size())};
            call(part, r, begin, end);
        });
    }
}

SKEIN_INLINE description any_optimizer::describe() const {
    description out;
    held_->describe(out);
    out.name = name();
    return out;
}

namespace detail {

SKEIN_INLINE void require_setting(bool fits, std::string what) {
    if (!fits) throw error(errc::usage, std::move(what));
}

SKEIN_INLINE bool is_fraction(double x) { return x >= 0.0 && x < 1.0; }
SKEIN_INLINE bool is_amount(double x) { return x >= 0.0 && std::isfinite(x); }

/// The name is as in C++; Adam and AdamW have the same settings.
template <class Adams>
void check_adam(const Adams& o, const char* name) {
    require_setting(is_fraction(o.beta1) && is_fraction(o.beta2),
                    fmt::format("{} betas {} and {} are not in [0, 1)", name, o.beta1, o.beta2));
    require_setting(
        o.eps > 0 && is_amount(o.weight_decay),
        fmt::format("{} eps {} or weight decay {} is negative", name, o.eps, o.weight_decay));
}

template <class Adams>
void describe_adam(const Adams& o, description& to) {
    to.add("beta1", o.beta1).add("beta2", o.beta2).add("eps", o.eps);
    to.add("weight decay", o.weight_decay).add("decay_vectors", o.decay_vectors);
}

/// What the fused kernels take beside the runs: the number of the step, from 1, once per run, and
/// the divisor of the gradients.
struct fused_values {
    explicit fused_values(const update_runs& runs, const update_values& v)
        : steps(runs.params.size(), at::scalar_tensor(static_cast<double>(v.step), at::kFloat)) {
        if (v.grad_scale != 1.0) scale = at::scalar_tensor(v.grad_scale, at::kFloat);
    }
    std::vector<at::Tensor> steps;
    std::optional<at::Tensor> scale;
};

} // namespace detail

} // namespace skein::train

namespace skein {

// ---- AdamW --------------------------------------------------------------------------------------

SKEIN_INLINE std::vector<train::optimizer_state> AdamW::states() const {
    return {{"exp_avg"}, {"exp_avg_sq"}};
}
SKEIN_INLINE void AdamW::check() const { train::detail::check_adam(*this, "AdamW"); }
SKEIN_INLINE void AdamW::describe(train::description& to) const {
    train::detail::describe_adam(*this, to);
}
SKEIN_INLINE void AdamW::update(const train::update_runs& r, const train::update_values& v) const {
    const train::detail::fused_values fused(r, v);
    at::_fused_adamw_(r.params, r.grads, r.states[0], r.states[1], {}, fused.steps, v.lr, beta1,
                      beta2, v.weight_decay, eps, /*amsgrad=*/false, /*maximize=*/false,
                      fused.scale);
}

// ---- Adam ---------------------------------------------------------------------------------------

SKEIN_INLINE std::vector<train::optimizer_state> Adam::states() const {
    return {{"exp_avg"}, {"exp_avg_sq"}};
}
SKEIN_INLINE void Adam::check() const { train::detail::check_adam(*this, "Adam"); }
SKEIN_INLINE void Adam::describe(train::description& to) const {
    train::detail::describe_adam(*this, to);
}
SKEIN_INLINE void Adam::update(const train::update_runs& r, const train::update_values& v) const {
    const train::detail::fused_values fused(r, v);
    at::_fused_adam_(r.params, r.grads, r.states[0], r.states[1], {}, fused.steps, v.lr, beta1,
                     beta2, v.weight_decay, eps, /*amsgrad=*/false, /*maximize=*/false,
                     fused.scale);
}

// ---- SGD ----------------------------------------------------------------------------------------

SKEIN_INLINE std::vector<train::optimizer_state> SGD::states() const {
    if (momentum == 0.0) return {};
    return {{"momentum"}};
}
SKEIN_INLINE void SGD::check() const {
    using train::detail::require_setting;
    require_setting(train::detail::is_fraction(momentum),
                    fmt::format("SGD momentum {} is not in [0, 1)", momentum));
    require_setting(!nesterov || momentum != 0.0, "SGD with nesterov needs a momentum");
    require_setting(train::detail::is_amount(weight_decay),
                    fmt::format("SGD weight decay {} is negative", weight_decay));
}
SKEIN_INLINE void SGD::describe(train::description& to) const {
    to.add("momentum", momentum).add("nesterov", nesterov);
    to.add("weight decay", weight_decay).add("decay_vectors", decay_vectors);
}
SKEIN_INLINE void SGD::update(const train::update_runs& r, const train::update_values& v) const {
    const train::detail::fused_values fused(r, v);
    const at::TensorList buffers =
        r.states.empty() ? at::TensorList() : at::TensorList(r.states[0]);
    // Zeroed momentum without dampening makes the first step like any other.
    at::_fused_sgd_(r.params, r.grads, buffers, v.weight_decay, momentum, v.lr,
                    /*dampening=*/0.0, nesterov, /*maximize=*/false,
                    /*is_first_step=*/false, fused.scale);
}

// ---- Adagrad ------------------------------------------------------------------------------------

SKEIN_INLINE std::vector<train::optimizer_state> Adagrad::states() const {
    return {{"sum", initial_sum}};
}
SKEIN_INLINE void Adagrad::check() const {
    using train::detail::is_amount, train::detail::require_setting;
    require_setting(
        is_amount(lr_decay) && is_amount(initial_sum) && is_amount(weight_decay),
        fmt::format("Adagrad lr_decay {}, initial_sum {} or weight decay {} is negative", lr_decay,
                    initial_sum, weight_decay));
    require_setting(eps > 0, fmt::format("Adagrad eps {} is not positive", eps));
}
SKEIN_INLINE void Adagrad::describe(train::description& to) const {
    to.add("lr_decay", lr_decay).add("eps", eps).add("initial_sum", initial_sum);
    to.add("weight decay", weight_decay).add("decay_vectors", decay_vectors);
}
SKEIN_INLINE void Adagrad::update(const train::update_runs& r,
                                  const train::update_values& v) const {
    const train::detail::fused_values fused(r, v);
    at::_fused_adagrad_(r.params, r.grads, r.states[0], fused.steps, v.lr, lr_decay, v.weight_decay,
                        eps, /*maximize=*/false, fused.scale);
}

// ---- Lion ---------------------------------------------------------------------------------------

SKEIN_INLINE std::vector<train::optimizer_state> Lion::states() const { return {{"exp_avg"}}; }
SKEIN_INLINE void Lion::check() const {
    using train::detail::is_fraction, train::detail::require_setting;
    require_setting(is_fraction(beta1) && is_fraction(beta2),
                    fmt::format("Lion betas {} and {} are not in [0, 1)", beta1, beta2));
    require_setting(train::detail::is_amount(weight_decay),
                    fmt::format("Lion weight decay {} is negative", weight_decay));
}
SKEIN_INLINE void Lion::describe(train::description& to) const {
    to.add("beta1", beta1).add("beta2", beta2);
    to.add("weight decay", weight_decay).add("decay_vectors", decay_vectors);
}
SKEIN_INLINE void Lion::update(const train::update_runs& runs,
                               const train::update_values& v) const {
    const auto scale = static_cast<float>(v.grad_scale), lr = static_cast<float>(v.lr);
    const auto b1 = static_cast<float>(beta1), rest1 = static_cast<float>(1.0 - beta1);
    const auto b2 = static_cast<float>(beta2), rest2 = static_cast<float>(1.0 - beta2);
    const auto kept = static_cast<float>(1.0 - v.lr * v.weight_decay);
    runs.for_each([=](const train::run_part& part) {
        float* const __restrict__ p = part.params.data();
        const float* const __restrict__ g = part.grads.data();
        float* const __restrict__ m = part.states[0].data();
        for (std::size_t i = 0; i < part.params.size(); ++i) {
            const float grad = g[i] / scale;
            const float c = b1 * m[i] + rest1 * grad;
            const float sign = static_cast<float>(c > 0.0f) - static_cast<float>(c < 0.0f);
            p[i] = p[i] * kept - lr * sign;
            m[i] = b2 * m[i] + rest2 * grad;
        }
    });
}

} // namespace skein

// ======== skein/train/parameter_groups.hpp
// Groups of parameters that take another rate or weight decay, or none of the updates, chosen by
// name.
//
//     const auto embeds = [](const parameter_info& p) { return p.name.starts_with("embed"); };
//     const auto is_norm = [](const parameter_info& p) { return p.name.ends_with("norm.weight"); };
//     parameter_groups groups{{.match = embeds, .lr_scale = 0.1},
//                             {.match = is_norm, .weight_decay = 0.0}};
//     trainer.fit(model, {skein::AdamW{}, {.groups = groups}}, schedule, loss, data, held_out);
//
// The first group that matches counts; what no group matches is updated as the optimizer says.


#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

/// What a predicate sees of a trainable parameter.
struct parameter_info {
    std::string_view name;               ///< as in named_parameters(); of tied parameters the first
    std::span<const std::int64_t> shape; ///< of all of it, also where a rank owns a part

    [[nodiscard]] std::size_t dims() const noexcept { return shape.size(); }
};

/// Parameters that a predicate chooses, and what is different for them.
struct parameter_group {
    /// Law: it depends on the parameter alone, and is equal on all ranks.
    std::function<bool(const parameter_info&)> match;
    double lr_scale = 1.0; ///< times the rate of the schedule
    /// In place of the optimizer's, for vectors too; none: the optimizer's own rule.
    std::optional<double> weight_decay{};
    /// No update, and no change of state. Its gradients are still computed and count for the norm:
    /// set requires_grad to false before fit() to save that, too.
    bool frozen = false;
};

/// In order of precedence: the first that matches a parameter counts.
using parameter_groups = std::vector<parameter_group>;

/// What the groups come to for one parameter.
struct update_effect {
    double lr_scale = 1.0;
    double weight_decay = 0.0;
    bool frozen = false;

    friend bool operator==(const update_effect&, const update_effect&) = default;
};

/// The effect on each parameter.
///   own_decay  of a parameter without a group, or whose group says none
///   errors     usage for a group without a predicate, with a senseless number, or that no
///              parameter is left for: it names the parameters there are
[[nodiscard]] std::vector<update_effect> effects_of(
    const parameter_groups& groups, std::span<const parameter_info> parameters,
    const std::function<double(const parameter_info&)>& own_decay);

} // namespace skein::train

namespace skein {
using train::parameter_group;
using train::parameter_groups;
using train::parameter_info;
} // namespace skein


// ======== skein/train/detail/parameter_groups.ipp
// Bodies of <skein/train/parameter_groups.hpp>.


#include <cmath>

#include <fmt/format.h>

namespace skein::train {

namespace detail {

SKEIN_INLINE void check_group(const parameter_group& group, std::size_t number) {
    const auto refuse = [&](const std::string& what, const char* hint) {
        throw error(errc::usage, fmt::format("parameter group {} {}", number, what))
            .with_hint(hint);
    };
    if (!group.match) refuse("has no predicate", "set .match");
    if (!(group.lr_scale >= 0) || !std::isfinite(group.lr_scale))
        refuse(fmt::format("has lr_scale {}", group.lr_scale),
               "use a finite number that is not negative");
    if (group.weight_decay && (!(*group.weight_decay >= 0) || !std::isfinite(*group.weight_decay)))
        refuse(fmt::format("has weight decay {}", *group.weight_decay),
               "use a finite number that is not negative");
}

/// "a, b, c and 5 more"
SKEIN_INLINE std::string some_names(std::span<const parameter_info> parameters) {
    constexpr std::size_t most = 20;
    std::string names;
    for (std::size_t i = 0; i < parameters.size() && i < most; ++i)
        names += fmt::format("{}{}", i > 0 ? ", " : "", parameters[i].name);
    if (parameters.size() > most) names += fmt::format(" and {} more", parameters.size() - most);
    return names;
}

} // namespace detail

SKEIN_INLINE std::vector<update_effect> effects_of(
    const parameter_groups& groups, std::span<const parameter_info> parameters,
    const std::function<double(const parameter_info&)>& own_decay) {
    for (std::size_t g = 0; g < groups.size(); ++g) detail::check_group(groups[g], g + 1);
    std::vector<std::size_t> matched(groups.size(), 0), taken(groups.size(), 0);
    std::vector<update_effect> effects;
    for (const auto& p : parameters) {
        update_effect effect{.weight_decay = own_decay(p)};
        bool found = false;
        for (std::size_t g = 0; g < groups.size(); ++g) {
            if (!groups[g].match(p)) continue;
            matched[g] += 1;
            if (found) continue;
            found = true;
            taken[g] += 1;
            effect = {groups[g].lr_scale, groups[g].weight_decay.value_or(effect.weight_decay),
                      groups[g].frozen};
        }
        effects.push_back(effect);
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
        if (taken[g] > 0) continue;
        if (matched[g] > 0)
            throw error(
                errc::usage,
                fmt::format("all that parameter group {} matches belongs to groups before it",
                            g + 1))
                .with_hint("the first group that matches counts: put the narrower one first");
        throw error(errc::usage, fmt::format("parameter group {} matches none of the {} parameters",
                                             g + 1, parameters.size()))
            .with_hint("there are " + detail::some_names(parameters));
    }
    return effects;
}

} // namespace skein::train

// ======== skein/train/weight_average.hpp
// An exponential moving average of the weights, of what each rank owns: 1/N of the memory when
// sharded.
//
//     trainer.fit(model, {skein::AdamW{}, {.average = average_options{.decay = 0.9999}}}, ...);
//
// Saved in checkpoints as optim.ema.<parameter>; load_weights(*net, path, {.average = true}) reads
// it.
//   source: Polyak and Juditsky 1992; the warm-up is that of tf.train.ExponentialMovingAverage


#include <cstdint>
#include <string>

namespace skein::train {

/// average = average + (1 - d) * (weights - average) after every step, d = decay.
struct average_options {
    double decay = 0.999;
    /// d of step t, from 1, is at most (1 + t) / (10 + t): the first weights are soon forgotten.
    bool warm_up = true;
    bool evaluate = true; ///< evaluations see the averages in place of the weights
    bool keep = false;    ///< the module leaves fit() with the averages
};

/// The averages of one rank over what it owns of a store, which must outlive it. They begin as the
/// weights.
class weight_average {
public:
    /// Throws errc::usage when decay is not in [0, 1).
    ///   folder  see make_state_buffer()
    weight_average(average_options options, flat_store& store, const std::string& folder);

    /// After the update of step t, from 1.
    void update(std::uint64_t step);
    /// Exchanges averages and weights of what this rank owns; twice changes nothing. Ranks may
    /// share the weights: nobody may read them meanwhile, and strategy::publish() comes after it.
    void swap();
    /// The averages are in the place of the weights.
    [[nodiscard]] bool is_shown() const noexcept { return shown_; }
    /// Begins again from the weights.
    void restart();

    [[nodiscard]] const average_options& options() const noexcept { return options_; }
    /// store.owned() elements, in the owned layout.
    [[nodiscard]] const at::Tensor& values() const noexcept { return values_; }

private:
    average_options options_;
    flat_store* store_;
    at::Tensor values_;
    update_runs runs_; // parameters, and as their only state the averages
    bool shown_ = false;
};

} // namespace skein::train

namespace skein {
using train::average_options;
}


// ======== skein/train/detail/weight_average.ipp
// Bodies of <skein/train/weight_average.hpp>.


// ======== skein/train/state_memory.hpp
// Memory for optimizer states that the kernel may write to a disk when memory is short.
//
// A file in a folder of the user's choice, mapped and without a name from the start: nothing is
// left behind however the program ends. On a disk the pages of a state that is not in use can leave
// memory; on tmpfs they leave it only where there is swap.


#include <cstdint>
#include <string>

namespace skein::train {

/// Zeroed float32 storage in a file of the folder, given back when the last view is gone. Its
/// blocks are reserved now: a disk that fills up later cannot end the program.
///   errors  usage when the folder is none or not writable; exhausted, with what is free, when it
///           is too small
[[nodiscard]] at::Tensor make_file_buffer(const std::string& folder, std::int64_t elements);

/// The same in the folder, or ordinary memory when that is empty.
[[nodiscard]] at::Tensor make_state_buffer(const std::string& folder, std::int64_t elements);

} // namespace skein::train


// ======== skein/train/detail/state_memory.ipp
// Bodies of <skein/train/state_memory.hpp>.


#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::train {

namespace detail {

/// A file in the folder that has no name any more.
SKEIN_INLINE unique_fd nameless_file(const std::string& folder) {
    unique_fd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (file) return file;
    const int first = errno;
    auto path = folder + "/.skein-state-XXXXXX"; // file systems that have no O_TMPFILE
    file.reset(::mkostemp(path.data(), O_CLOEXEC));
    if (file) {
        ::unlink(path.c_str());
        return file;
    }
    throw error(errc::usage, fmt::format("optimizer states cannot be placed in {}: {}", folder,
                                         std::strerror(first == EOPNOTSUPP ? errno : first)))
        .with_hint("give a folder that exists, that this user may write to, on a local disk");
}

SKEIN_INLINE double free_bytes(int file) {
    struct statvfs about{};
    if (::fstatvfs(file, &about) != 0) return 0.0;
    return static_cast<double>(about.f_bavail) * static_cast<double>(about.f_frsize);
}

/// Gives the file its size, with blocks of its own.
SKEIN_INLINE void reserve(int file, std::size_t bytes, const std::string& folder) {
    int failed = ::fallocate(file, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    if (failed == EOPNOTSUPP) { // the best there is on such a file system
        failed = free_bytes(file) < static_cast<double>(bytes)       ? ENOSPC
                 : ::ftruncate(file, static_cast<off_t>(bytes)) == 0 ? 0
                                                                     : errno;
    }
    if (failed == 0) return;
    const bool full = failed == ENOSPC || failed == EFBIG || failed == EDQUOT;
    throw error(full ? errc::exhausted : errc::io,
                fmt::format("no room for {} bytes of optimizer state in {} ({:.0f} are free): {}",
                            bytes, folder, free_bytes(file), std::strerror(failed)))
        .with_hint("give a folder on a larger disk, or shard the optimizer over more ranks");
}

} // namespace detail

SKEIN_INLINE at::Tensor make_file_buffer(const std::string& folder, std::int64_t elements) {
    const auto bytes =
        static_cast<std::size_t>(std::max<std::int64_t>(elements, 1)) * sizeof(float);
    const auto file = detail::nameless_file(folder);
    detail::reserve(file.get(), bytes, folder);
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED)
        throw error(errc::io, fmt::format("{} bytes of optimizer state in {} cannot be mapped: {}",
                                          bytes, folder, std::strerror(errno)))
            .with_hint("give a folder on a local disk");
    return at::from_blob(
        memory, {elements}, [bytes](void* p) { ::munmap(p, bytes); },
        at::TensorOptions().dtype(at::kFloat));
}

SKEIN_INLINE at::Tensor make_state_buffer(const std::string& folder, std::int64_t elements) {
    return folder.empty() ? make_flat_buffer(elements) : make_file_buffer(folder, elements);
}

} // namespace skein::train


// ======== skein/train/detail/weight_average.ipp, continued
#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::train {

SKEIN_INLINE weight_average::weight_average(average_options options, flat_store& store,
                                            const std::string& folder)
    : options_(options), store_(&store) {
    if (!(options.decay >= 0.0 && options.decay < 1.0))
        throw error(errc::usage,
                    fmt::format("the decay {} of the average is not in [0, 1)", options.decay));
    values_ = make_state_buffer(folder, store.owned());
    const auto& pieces = store.pieces();
    for (std::size_t i = 0; i < pieces.size();) {
        auto run = pieces[i++];
        for (; i < pieces.size() && pieces[i].flat == run.flat + run.padded &&
               pieces[i].at == run.at + run.padded;
             ++i)
            run.padded += pieces[i].padded;
        runs_.push(store.params_P().narrow(0, run.flat, run.padded), {},
                   {values_.narrow(0, run.at, run.padded)});
    }
    restart();
}

SKEIN_INLINE void weight_average::update(std::uint64_t step) {
    const double t = static_cast<double>(step);
    const double decay =
        options_.warm_up ? std::min(options_.decay, (1.0 + t) / (10.0 + t)) : options_.decay;
    const auto rest = static_cast<float>(1.0 - decay);
    runs_.for_each([rest](const run_part& part) {
        const float* const __restrict__ p = part.params.data();
        float* const __restrict__ mean = part.states[0].data();
        for (std::size_t i = 0; i < part.params.size(); ++i) mean[i] += rest * (p[i] - mean[i]);
    });
}

SKEIN_INLINE void weight_average::swap() {
    store_->take_writes();
    shown_ = !shown_;
    runs_.for_each([](const run_part& part) {
        std::swap_ranges(part.params.begin(), part.params.end(), part.states[0].begin());
    });
    store_->cast_owned();
}

SKEIN_INLINE void weight_average::restart() {
    runs_.for_each([](const run_part& part) {
        std::copy(part.params.begin(), part.params.end(), part.states[0].begin());
    });
}

} // namespace skein::train


// ======== skein/train/optimizer.hpp, continued
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::train {

/// What may be asked for beside the optimizer.
struct optimizer_extras {
    parameter_groups groups{};
    std::optional<average_options> average{}; ///< of the weights, in use beside them
    /// Folder for the optimizer's states in mapped files, which the kernel may write out when
    /// memory is short; empty: ordinary memory. See make_file_buffer().
    std::string states_in{};
};

/// An optimizer of any kind, and the extras: AdamW{...}, or {AdamW{...}, {.groups = ...}}.
struct optimizer_options {
    template <class O>
        requires(!std::same_as<std::remove_cvref_t<O>, optimizer_options>) &&
                    optimizer<std::remove_cvref_t<O>>
    optimizer_options(O&& optimizer, optimizer_extras extras = {})
        : how(std::forward<O>(optimizer)), more(std::move(extras)) {}

    any_optimizer how;
    optimizer_extras more{};
};

/// The settings that all ranks must have alike, but for what the groups match: see
/// flat_optimizer::effect_hash().
[[nodiscard]] description describe(const optimizer_options& options);

/// The global norm of the gradients, and what it means for the step.
struct gradient_norm {
    double norm = 0.0;
    double scale = 1.0; ///< gradients are divided by it
};

/// As torch's clip_grad_norm_: gradients longer than `limit` are brought to that length; 0 = never.
[[nodiscard]] inline gradient_norm clip_to(double norm, double limit) noexcept {
    if (limit <= 0 || !(norm + 1e-6 > limit)) return {norm, 1.0};
    return {norm, (norm + 1e-6) / limit};
}

/// The optimizer of one rank over what it owns of a store, which must outlive it.
class flat_optimizer {
public:
    /// Throws errc::usage for settings or groups that make no sense, and what make_file_buffer()
    /// throws.
    flat_optimizer(optimizer_options options, flat_store& store);

    /// One update from the owned gradients, which are divided by grad_scale first. What is left in
    /// them has no meaning.
    ///   present     by segment of the store: 0 where no rank had a gradient. Such a parameter is
    ///               left as it is, decay and state too, as torch.optim does with a grad of None;
    ///               empty: all had
    ///   clip_value  gradients are brought into [-clip_value, clip_value] once they are divided, as
    ///               by torch's clip_grad_value_; 0 = never
    void step(double lr, double grad_scale = 1.0, std::span<const double> present = {},
              double clip_value = 0.0);

    /// After flat_store::move_gradients().
    void rebind();

    [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
    void set_steps(std::uint64_t finished) noexcept { steps_ = finished; }
    /// By segment: in how many of the steps it was left out. Empty: none ever was.
    [[nodiscard]] const std::vector<std::uint64_t>& left_out() const noexcept { return left_out_; }
    void set_left_out(std::vector<std::uint64_t> steps);
    [[nodiscard]] std::string name() const { return options_.how.name(); }
    [[nodiscard]] const optimizer_options& options() const noexcept { return options_; }
    /// State buffers by name, store.owned() elements each, in the owned layout: for checkpoints.
    /// The average of the weights is one of them, "ema".
    [[nodiscard]] const std::vector<std::pair<std::string, at::Tensor>>& states() const noexcept {
        return states_;
    }
    /// Of rate, decay and freezing of every parameter: equal on all ranks, or their groups differ.
    [[nodiscard]] std::uint64_t effect_hash() const;

    /// The average of the weights, when asked for.
    [[nodiscard]] weight_average* average() noexcept { return average_ ? &*average_ : nullptr; }

private:
    /// Elements amid a group whose decay is another.
    struct patch {
        std::int64_t begin, size; // in the group's only run
        std::int64_t at;          // in the copy
    };
    /// Patches of one decay, which are updated in a copy, side by side.
    struct aside {
        double weight_decay;
        std::vector<patch> patches{};
        std::int64_t size = 0; // of all
        update_runs copies{};  // one run
    };
    static constexpr std::int64_t stretch = 1 << 18; // elements of a group with others

    /// Neighbours that take the same update, as one long tensor each; but for those set aside.
    struct group {
        update_effect effect;
        std::uint64_t left_out = 0;
        update_runs runs{};
        std::vector<aside> others{};
    };

    [[nodiscard]] std::vector<update_effect> make_effects() const;
    [[nodiscard]] std::vector<group> make_groups(std::span<const double> present);
    [[nodiscard]] bool joins_decays() const;
    void join(std::vector<group>& groups, std::span<const owned_piece> run);
    void set_aside(group& from);
    void push(group& to, const owned_piece& run) const;
    static void copy(const update_runs& run, const aside& part, bool back);
    void update(const group& g, double lr, double grad_scale, double clip_value) const;

    optimizer_options options_;
    flat_store* store_;
    std::vector<update_effect> effects_; // by segment
    bool joins_ = false;                 // runs go across parameters of different decay
    std::size_t own_states_ = 0;         // of the optimizer; further ones are not its business
    std::vector<std::pair<std::string, at::Tensor>> states_;
    std::optional<weight_average> average_;
    std::vector<group> groups_; // while no parameter is or was left out
    at::Tensor copies_;         // for what groups set aside, one group at a time
    std::vector<std::uint64_t> left_out_;
    std::uint64_t steps_ = 0;
};

} // namespace skein::train

namespace skein {
using train::optimizer_extras;
}


// ======== skein/train/detail/optimizer.ipp
// Bodies of <skein/train/optimizer.hpp>.


#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace skein::train {

SKEIN_INLINE description describe(const optimizer_options& options) {
    auto out = options.how.describe();
    std::size_t number = 0;
    for (const auto& g : options.more.groups) {
        const auto name = [&](const char* what) {
            return fmt::format("{} of parameter group {}", what, number);
        };
        number += 1;
        out.add(name("lr_scale"), g.lr_scale).add(name("frozen"), g.frozen);
        if (g.weight_decay) out.add(name("weight decay"), *g.weight_decay);
    }
    if (const auto& a = options.more.average) {
        out.add("decay of the average", a->decay).add("warm-up of the average", a->warm_up);
        out.add("evaluates the average", a->evaluate).add("keeps the average", a->keep);
    }
    return out;
}

SKEIN_INLINE flat_optimizer::flat_optimizer(optimizer_options options, flat_store& store)
    : options_(std::move(options)), store_(&store) {
    const auto& more = options_.more;
    options_.how.check();
    effects_ = make_effects();
    joins_ = joins_decays();
    for (const auto& state : options_.how.states()) {
        if (state.name.empty() || state.name == "ema" || state.name.find('.') != std::string::npos)
            throw error(errc::usage,
                        fmt::format("optimizer {} has a state named '{}'", name(), state.name))
                .with_hint("use a name without dots, other than ema");
        states_.emplace_back(state.name, make_state_buffer(more.states_in, store.owned()));
        if (state.initial != 0.0) states_.back().second.fill_(state.initial);
    }
    own_states_ = states_.size();
    if (more.average) {
        average_.emplace(*more.average, store, more.states_in);
        states_.emplace_back("ema", average_->values());
    }
    groups_ = make_groups({});
}

SKEIN_INLINE void flat_optimizer::step(double lr, double grad_scale,
                                       std::span<const double> present, double clip_value) {
    store_->take_writes(/*always=*/false);
    // Nothing here is recorded: past autograd's checks of every tensor, which cost more than short
    // runs.
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    steps_ += 1;
    const bool all = std::ranges::all_of(present, [](double p) { return p != 0.0; });
    if (!all && left_out_.empty()) left_out_.assign(store_->segments().size(), 0);
    if (left_out_.empty()) {
        for (const auto& g : groups_) update(g, lr, grad_scale, clip_value);
    } else {
        for (std::size_t i = 0; i < present.size(); ++i)
            if (present[i] == 0.0) left_out_[i] += 1;
        for (const auto& g : make_groups(present)) update(g, lr, grad_scale, clip_value);
    }
    if (average_) average_->update(steps_);
}

SKEIN_INLINE void flat_optimizer::rebind() { groups_ = make_groups({}); }

SKEIN_INLINE void flat_optimizer::update(const group& g, double lr, double grad_scale,
                                         double clip_value) const {
    if (clip_value > 0.0) {
        const auto scale = static_cast<float>(std::exchange(grad_scale, 1.0));
        const auto limit = static_cast<float>(clip_value);
        g.runs.for_each([=](const run_part& part) {
            for (auto& x : part.grads) x = std::clamp(x / scale, -limit, limit);
        });
    }
    update_values values{.step = steps_ - g.left_out,
                         .lr = lr * g.effect.lr_scale,
                         .weight_decay = g.effect.weight_decay,
                         .grad_scale = grad_scale};
    for (const auto& other : g.others) copy(g.runs, other, /*back=*/false);
    options_.how.update(g.runs, values);
    for (const auto& other : g.others) {
        values.weight_decay = other.weight_decay;
        options_.how.update(other.copies, values);
        copy(g.runs, other, /*back=*/true);
    }
}

/// Parameters, gradients and states of what is set aside, out of the run; or what changed of them
/// back.
SKEIN_INLINE void flat_optimizer::copy(const update_runs& run, const aside& part, bool back) {
    struct pair {
        float *run, *copy;
    };
    std::vector<pair> arrays;
    const auto add = [&](const at::Tensor& of_run, const at::Tensor& of_copy) {
        arrays.push_back({static_cast<float*>(of_run.mutable_data_ptr()),
                          static_cast<float*>(of_copy.mutable_data_ptr())});
    };
    add(run.params[0], part.copies.params[0]);
    if (!back) add(run.grads[0], part.copies.grads[0]);
    for (std::size_t k = 0; k < run.states.size(); ++k)
        add(run.states[k][0], part.copies.states[k][0]);
    const auto count = static_cast<std::int64_t>(part.patches.size());
    const auto fetch =
        [&](const patch& p) { // the processor does not foresee where the next one lies
            for (const auto& a : arrays)
                for (std::int64_t k = 0; k < std::min<std::int64_t>(p.size, 128);
                     k += flat_alignment)
                    __builtin_prefetch(a.run + p.begin + k, /*write=*/1);
        };
    at::parallel_for(0, count, 64, [&](std::int64_t first, std::int64_t last) {
        const auto patches = std::span(part.patches).first(static_cast<std::size_t>(last));
        constexpr std::size_t ahead = 4;
        for (auto i = static_cast<std::size_t>(first); i < patches.size(); ++i) {
            const auto& p = patches[i];
            if (i + ahead < patches.size()) fetch(patches[i + ahead]);
            const auto bytes = static_cast<std::size_t>(p.size) * sizeof(float);
            for (const auto& a : arrays) {
                auto* const in_run = a.run + p.begin;
                auto* const in_copy = a.copy + p.at;
                std::memcpy(back ? in_run : in_copy, back ? in_copy : in_run, bytes);
            }
        }
    });
}

SKEIN_INLINE void flat_optimizer::set_left_out(std::vector<std::uint64_t> steps) {
    const bool none = std::ranges::all_of(steps, [](std::uint64_t n) { return n == 0; });
    left_out_ = none ? std::vector<std::uint64_t>() : std::move(steps);
}

SKEIN_INLINE std::vector<update_effect> flat_optimizer::make_effects() const {
    std::vector<parameter_info> parameters;
    for (const auto& s : store_->segments()) parameters.push_back({s.name, s.shape});
    return effects_of(options_.more.groups, parameters,
                      [&](const parameter_info& p) { return options_.how.weight_decay(p.dims()); });
}

SKEIN_INLINE std::uint64_t flat_optimizer::effect_hash() const {
    fnv1a hash;
    for (const auto& e : effects_) {
        hash.number(std::bit_cast<std::uint64_t>(e.lr_scale));
        hash.number(std::bit_cast<std::uint64_t>(e.weight_decay));
        hash.number(e.frozen ? 1u : 0u);
    }
    return hash.value();
}

/// Kernels are called for every run, so that many short ones cost more than their elements.
SKEIN_INLINE bool flat_optimizer::joins_decays() const {
    constexpr std::int64_t short_parameter = 1 << 14;
    const auto count = static_cast<std::int64_t>(effects_.size());
    const bool differ = std::ranges::any_of(effects_, [&](const update_effect& e) {
        return e.weight_decay != effects_.front().weight_decay;
    });
    return differ && store_->trainable() < count * short_parameter;
}

SKEIN_INLINE void flat_optimizer::push(group& to, const owned_piece& run) const {
    std::vector<at::Tensor> states;
    for (std::size_t k = 0; k < own_states_; ++k)
        states.push_back(states_[k].second.narrow(0, run.at, run.padded));
    to.runs.push(store_->params_P().narrow(0, run.flat, run.padded), store_->own_grads(run),
                 std::move(states));
}

/// Neighbours of different decay, in stretches that are still in a cache when what was set aside
/// follows. Of each, the elements of the decay that most have are updated in place, and so are,
/// wrongly, the others: what comes of these is replaced by the update of their copy.
SKEIN_INLINE void flat_optimizer::join(std::vector<group>& groups,
                                       std::span<const owned_piece> run) {
    const auto begin = run.front().flat, end = run.back().flat + run.back().padded;
    auto piece = run.begin();
    for (auto first = begin; first < end; first += stretch) {
        auto part = run.front();
        part.flat = first;
        part.at += first - begin;
        part.padded = std::min(stretch, end - first);
        auto& to = groups.emplace_back(
            group{effects_[part.segment], left_out_.empty() ? 0 : left_out_[part.segment]});
        push(to, part);
        const auto last = first + part.padded;
        for (; piece != run.end() && piece->flat < last; ++piece) {
            const auto from = std::max(piece->flat, first);
            const auto upto = std::min(piece->flat + piece->padded, last);
            const double decay = effects_[piece->segment].weight_decay;
            auto of = std::ranges::find(to.others, decay, &aside::weight_decay);
            if (of == to.others.end()) of = to.others.insert(of, aside{decay});
            of->patches.push_back({from - first, upto - from, of->size});
            of->size += upto - from;
            if (piece->flat + piece->padded > last) break; // the rest of it in the next stretch
        }
        set_aside(to);
    }
}

/// All but the most are set aside.
SKEIN_INLINE void flat_optimizer::set_aside(group& from) {
    const auto most = std::ranges::max_element(from.others, {}, &aside::size);
    from.effect.weight_decay = most->weight_decay;
    from.others.erase(most);
    if (!copies_.defined() && !from.others.empty())
        copies_ = make_flat_buffer(std::min(stretch, store_->owned()) *
                                   static_cast<std::int64_t>(2 + own_states_));
    std::int64_t at = 0;
    for (auto& other : from.others) {
        const auto next = [&] {
            return copies_.narrow(0, std::exchange(at, at + other.size), other.size);
        };
        auto params = next(), grads = next();
        std::vector<at::Tensor> states;
        for (std::size_t k = 0; k < own_states_; ++k) states.push_back(next());
        other.copies.push(std::move(params), std::move(grads), std::move(states));
    }
}

/// Neighbours of equal effect, and equally often left out, form one run; runs of a kind form a
/// group.
SKEIN_INLINE std::vector<flat_optimizer::group> flat_optimizer::make_groups(
    std::span<const double> present) {
    const auto& pieces = store_->pieces();
    const auto idle = [&](std::size_t i) {
        return effects_[i].frozen || (!present.empty() && present[i] == 0.0);
    };
    const auto missed = [&](std::size_t i) { return left_out_.empty() ? 0 : left_out_[i]; };
    std::vector<group> groups;
    const auto group_of = [&](std::size_t i) -> group& {
        for (auto& g : groups)
            if (g.effect == effects_[i] && g.left_out == missed(i)) return g;
        return groups.emplace_back(group{effects_[i], missed(i)});
    };
    const auto alike = [&](const owned_piece& a, const owned_piece& b) {
        const auto i = a.segment, k = b.segment;
        auto effect = effects_[k];
        if (joins_) effect.weight_decay = effects_[i].weight_decay;
        return a.flat + a.padded == b.flat && a.at + a.padded == b.at && effect == effects_[i] &&
               idle(k) == idle(i) && missed(k) == missed(i);
    };
    for (std::size_t i = 0; i < pieces.size();) {
        auto run = pieces[i]; // with all behind it that take the same update
        auto end = i + 1;
        for (; end < pieces.size() && alike(pieces[end - 1], pieces[end]); ++end)
            run.padded += pieces[end].padded;
        const bool updated = !idle(run.segment);
        if (updated && joins_) join(groups, std::span(pieces).subspan(i, end - i));
        if (updated && !joins_) push(group_of(run.segment), run);
        i = end;
    }
    return groups;
}

} // namespace skein::train


// ======== skein/train/memory_plan.hpp, continued
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

namespace detail {
struct shard_policy;
}

/// Elements of a model's trainable parameters, padding included.
struct unit_sizes {
    std::int64_t total = 0;
    std::int64_t root = 0;    ///< of it in no block: gathered for a whole step
    std::int64_t largest = 0; ///< block
    std::int64_t blocks = 0;  ///< how many
};

/// The sizes of a model that has been grouped into units.
[[nodiscard]] unit_sizes sizes_of(std::span<const flat_unit> units);

/// Nothing is moved and nothing allocated.
///   plan    how a strategy would group them. Empty: blocks that are skein::unit; without such,
///           buckets of 25 MiB
///   errors  those of flat_store
[[nodiscard]] unit_sizes measure_units(torch::nn::Module& model, const plan_function& plan = {});

/// Where a model is trained, and in which precision.
struct memory_shape {
    int ranks = 1;
    int hosts = 1;        ///< with equal numbers of ranks
    bool one_copy = true; ///< the ranks of a host can map each other's memory (not over the ring)
    double states =
        2.0; ///< numbers per element that the optimizer keeps: AdamW 2, SGD with momentum 1
    double compute = 4.0; ///< bytes per element in forward and backward
    double reduce = 4.0;  ///< of gradients on their way
    double master =
        4.0; ///< of what the optimizer updates, its states and the summed gradients it reads

    [[nodiscard]] int ranks_per_host() const noexcept {
        return hosts > 0 ? (ranks + hosts - 1) / hosts : ranks;
    }
};

/// Bytes of one rank.
struct memory_need {
    std::string strategy{};
    double parameters = 0.0;
    double gradients = 0.0;
    double optimizer = 0.0;
    double gathered = 0.0; ///< of other ranks' parameters, while they are in use

    [[nodiscard]] double total() const noexcept {
        return parameters + gradients + optimizer + gathered;
    }
};

/// The mean over the ranks: pieces differ by a row.
///   policy  of a strategy (detail/sharded.hpp); the name goes into the result
/// P elements, N ranks that share, m, r and c bytes (master, reduce, compute), s states:
///   parameters  m P, or m P / N; and c P more when c is not m. Shared by the L ranks of a host:
///               divided by L
///   gradients   r P; cut: r (root + 2 blocks) + m P / N; not cut and r is not m: m P / N more
///   optimizer   s m P, or s m P / N
///   gathered    c (root + blocks in use) (N - 1) / N, of parameters that are cut between hosts
[[nodiscard]] memory_need need_of(const detail::shard_policy& policy, const unit_sizes& sizes,
                                  const memory_shape& shape);

/// The policies of Single, DDP, Zero1, Zero2, FSDP and Hybrid, by these names in small letters.
[[nodiscard]] std::span<const detail::shard_policy> known_policies();
/// The need of each of them.
[[nodiscard]] std::vector<memory_need> plan_memory(const unit_sizes& sizes,
                                                   const memory_shape& shape);

/// What there is for the ranks of a host together.
struct memory_limit {
    double bytes = 0.0;
    std::string source{}; ///< in words
};

/// The setting if it is positive, else the least of the limit of this process's control group
/// (version 2) and the memory that the system has available.
[[nodiscard]] memory_limit find_memory_limit(double setting = 0.0);

/// Lines for people: a row per strategy, what does not fit is marked.
[[nodiscard]] std::string memory_table(const unit_sizes& sizes, const memory_shape& shape,
                                       const memory_limit& limit);

/// The bytes that a store and the states of its optimizer hold, by kind; what peers share counts in
/// parts.
///   own_part  of the parameters this rank keeps what it owns alone, or all ranks of the host have
///             one copy
[[nodiscard]] memory_need count_memory(flat_store& store, std::span<const at::Tensor> states,
                                       bool own_part);

/// Of this process, pages that others have mapped too counted in parts; 0 where the kernel does not
/// say.
[[nodiscard]] double proportional_set_size();

/// Numbers per element that the optimizer keeps.
[[nodiscard]] double states_of(const optimizer_options& options);

namespace detail {

/// The shape of a run, as far as it is known before its groups are made.
[[nodiscard]] memory_shape shape_of(const context& ctx, const run_config& config, double states,
                                    const precision_policy& precision = {});

/// Throws errc::usage when the state is too large for the limit, with the need of every strategy:
/// before any of it is allocated. A strategy of another name than the known ones is let through.
void refuse_too_large(std::string_view strategy, torch::nn::Module& model, const context& ctx,
                      const run_config& config, const optimizer_options& options,
                      const precision_policy& precision = {});

/// What a run keeps, counted beside the formula, for the lines at its start; empty for an unknown
/// strategy.
[[nodiscard]] std::string memory_notice(std::string_view strategy, flat_store& store,
                                        std::span<const at::Tensor> states,
                                        const memory_shape& shape);

} // namespace detail
} // namespace skein::train


// ======== skein/train/detail/memory_plan.ipp
// Bodies of <skein/train/memory_plan.hpp>.


#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE unit_sizes sizes_of(std::span<const flat_unit> units) {
    unit_sizes out;
    for (const auto& u : units) {
        const auto size = u.place.size();
        out.total += size;
        if (u.name.empty()) {
            out.root += size;
            continue;
        }
        out.largest = std::max(out.largest, size);
        out.blocks += 1;
    }
    return out;
}

SKEIN_INLINE unit_sizes measure_units(torch::nn::Module& model, const plan_function& plan) {
    store_options only;
    only.only_layout = true;
    only.plan = plan;
    if (!plan)
        only.plan = [](torch::nn::Module& root, const std::vector<plan_parameter>& parameters) {
            const auto marked = [](const torch::nn::Module& m) {
                return dynamic_cast<const unit_mark*>(&m) != nullptr;
            };
            for (const auto& each : root.modules(/*include_self=*/false))
                if (marked(*each)) return detail::plan_blocks(root, parameters, marked, {});
            return detail::plan_buckets(parameters, bucket<>::first_bytes, bucket<>::bytes);
        };
    const flat_store layout(model, only);
    return sizes_of(layout.units());
}

SKEIN_INLINE double states_of(const optimizer_options& options) {
    const auto own = static_cast<double>(options.how.states().size());
    return own + (options.more.average ? 1.0 : 0.0);
}

SKEIN_INLINE memory_need need_of(const detail::shard_policy& policy, const unit_sizes& sizes,
                                 const memory_shape& shape) {
    const bool alone = shape.ranks == 1 || policy.name == "single";
    const int sharing = alone || !policy.shard_states ? 1
                        : policy.inside_hosts         ? shape.ranks_per_host()
                                                      : shape.ranks;
    const bool mixed = shape.compute != shape.master;
    const double P = static_cast<double>(sizes.total), N = sharing;
    // One memory for all that share the parameters, when they are on one host.
    const bool one_copy = shape.one_copy && sharing > 1 && sharing <= shape.ranks_per_host();
    const bool cut = policy.shard_parameters && sharing > 1 && !one_copy; // and gathered when used
    const bool cut_gradients = policy.shard_gradients && sharing > 1;
    const auto blocks = [&](std::int64_t count) {
        return static_cast<double>(sizes.root + sizes.largest * std::min(count, sizes.blocks));
    };

    memory_need need{.strategy = std::string(policy.name)};
    const double whole = (one_copy || cut ? P / N : P); // of what forward and backward read
    need.parameters = (mixed ? shape.master * P / N : 0.0) + shape.compute * whole;
    need.gradients = shape.reduce * (cut_gradients ? blocks(2) : P);
    if (cut_gradients || shape.reduce != shape.master) need.gradients += shape.master * P / N;
    need.optimizer = shape.states * shape.master * P / N;
    if (cut) {
        const double used =
            policy.reshard_after_forward ? blocks(1 + std::max(0, policy.prefetch)) : P;
        need.gathered = shape.compute * used * (N - 1) / N;
    }
    return need;
}

SKEIN_INLINE std::span<const detail::shard_policy> known_policies() {
    using detail::shard_policy;
    static const std::array<shard_policy, 6> all{
        shard_policy{.name = "single"},
        shard_policy{.name = "ddp"},
        shard_policy{.name = "zero1", .shard_states = true},
        shard_policy{.name = "zero2", .shard_states = true, .shard_gradients = true},
        shard_policy{.name = "fsdp",
                     .shard_states = true,
                     .shard_gradients = true,
                     .shard_parameters = true},
        shard_policy{.name = "hybrid",
                     .shard_states = true,
                     .shard_gradients = true,
                     .shard_parameters = true,
                     .inside_hosts = true}};
    return all;
}

SKEIN_INLINE std::vector<memory_need> plan_memory(const unit_sizes& sizes,
                                                  const memory_shape& shape) {
    std::vector<memory_need> out;
    for (const auto& policy : known_policies()) out.push_back(need_of(policy, sizes, shape));
    return out;
}

// ---- limits -------------------------------------------------------------------------------------

namespace detail {

/// The number of bytes behind `key` in a file of lines such as "MemAvailable:  123 kB".
SKEIN_INLINE std::optional<double> kilobytes_in(const char* path, std::string_view key) {
    const auto text = read_small_file(path);
    auto at = text.find(key);
    if (at == std::string::npos) return std::nullopt;
    at = text.find_first_of("0123456789", at + key.size());
    if (at == std::string::npos) return std::nullopt;
    std::uint64_t number = 0;
    std::from_chars(text.data() + at, text.data() + text.size(), number);
    return static_cast<double>(number) * 1024.0;
}

/// The least memory.max from this process's control group up to the root of the hierarchy.
SKEIN_INLINE std::optional<double> control_group_limit() {
    const auto groups = read_small_file("/proc/self/cgroup");
    const auto line = groups.find("0::/");
    if (line == std::string::npos) return std::nullopt;
    auto path = groups.substr(line + 3, groups.find('\n', line) - line - 3);
    std::optional<double> least;
    for (;;) {
        const auto text = read_small_file(("/sys/fs/cgroup" + path + "/memory.max").c_str());
        std::uint64_t bytes = 0;
        const auto end = std::from_chars(text.data(), text.data() + text.size(), bytes).ptr;
        if (end != text.data()) // not "max"
            least = std::min(least.value_or(1e300), static_cast<double>(bytes));
        if (path.empty()) return least;
        path.resize(path.rfind('/'));
    }
}

} // namespace detail

SKEIN_INLINE memory_limit find_memory_limit(double setting) {
    if (setting > 0) return {setting, "the setting memory_limit"};
    memory_limit limit{1e300, "no limit that the system tells"};
    if (const auto group = detail::control_group_limit())
        limit = {*group, "memory.max of the control group"};
    const auto available = detail::kilobytes_in("/proc/meminfo", "MemAvailable:");
    if (available && *available < limit.bytes) limit = {*available, "MemAvailable of the host"};
    return limit;
}

SKEIN_INLINE double proportional_set_size() {
    return detail::kilobytes_in("/proc/self/smaps_rollup", "\nPss:").value_or(0.0);
}

// ---- for people ---------------------------------------------------------------------------------

SKEIN_INLINE std::string memory_table(const unit_sizes& sizes, const memory_shape& shape,
                                      const memory_limit& limit) {
    const auto text = [](double bytes) { return bytes > 0 ? report::human_bytes(bytes) : "-"; };
    const int here = shape.ranks_per_host();
    std::string out =
        fmt::format("{} parameters in {} blocks and a root of {}; {} ranks on {} host{}\n{:<9} "
                    "{:>11} {:>11} {:>11} {:>11} {:>11} {:>11}\n",
                    sizes.total, sizes.blocks, sizes.root, shape.ranks, shape.hosts,
                    shape.hosts == 1 ? "" : "s", "strategy", "parameters", "gradients", "optimizer",
                    "gathered", "each rank", "each host");
    for (const auto& need : plan_memory(sizes, shape)) {
        const int ranks = need.strategy == "single" ? 1 : here;
        const double host = need.total() * ranks;
        out += fmt::format("{:<9} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}{}\n", need.strategy,
                           text(need.parameters), text(need.gradients), text(need.optimizer),
                           text(need.gathered), text(need.total()), text(host),
                           host > limit.bytes ? "  does not fit" : "");
    }
    if (limit.bytes < 1e300)
        out += fmt::format("limit of a host: {} ({})\n", report::human_bytes(limit.bytes),
                           limit.source);
    return out + "without activations, and without what the program itself needs (about 200 MB)\n";
}

SKEIN_INLINE memory_need count_memory(flat_store& store, std::span<const at::Tensor> states,
                                      bool own_part) {
    const auto bytes = [](const at::Tensor& t) { return static_cast<double>(t.nbytes()); };
    memory_need need;
    const double share = double(store.owned()) / double(store.size());
    need.parameters = bytes(store.params_P());
    if (own_part || store.is_mixed()) need.parameters *= share;
    if (store.is_mixed()) need.parameters += bytes(store.compute_P()) * (own_part ? share : 1.0);
    need.gradients = bytes(store.grads_P());
    if (store.keeps_own_grads()) need.gradients += double(store.owned()) * sizeof(float);
    for (const auto& t : states) need.optimizer += bytes(t);
    return need;
}

namespace detail {

SKEIN_INLINE memory_shape shape_of(const context& ctx, const run_config& config, double states,
                                   const precision_policy& precision) {
    memory_shape shape;
    shape.compute = static_cast<double>(c10::elementSize(precision.compute));
    shape.reduce = static_cast<double>(c10::elementSize(precision.reduce));
    shape.ranks = ctx.world_size();
    const int here = std::max(1, ctx.local_size());
    shape.hosts = std::max(1, (ctx.world_size() + here - 1) / here);
    shape.one_copy = config.communicator != "ring";
    shape.states = states;
    return shape;
}

SKEIN_INLINE const shard_policy* policy_of(std::string_view strategy) {
    std::string name(strategy);
    for (auto& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const auto& policy : known_policies())
        if (policy.name == name) return &policy;
    return nullptr;
}

SKEIN_INLINE void refuse_too_large(std::string_view strategy, torch::nn::Module& model,
                                   const context& ctx, const run_config& config,
                                   const optimizer_options& options,
                                   const precision_policy& precision) {
    const auto* policy = policy_of(strategy);
    if (policy == nullptr || (policy->name == "single" && ctx.world_size() > 1)) return;
    auto limit = find_memory_limit(static_cast<double>(config.memory_limit));
    const auto sizes = measure_units(model);
    const auto shape = shape_of(ctx, config, states_of(options), precision);
    const int here = shape.ranks_per_host();
    // What is available has paid for the model's parameters already, and they move into the store.
    if (limit.source.starts_with("MemAvailable")) limit.bytes += 4.0 * double(sizes.total) * here;
    const auto need = need_of(*policy, sizes, shape);
    if (need.total() * here <= limit.bytes) return;

    const auto text = [](double bytes) { return report::human_bytes(bytes); };
    std::string all;
    for (const auto& each : plan_memory(sizes, shape)) {
        if (each.strategy == "single") continue;
        all += fmt::format("{}{} {}{}", all.empty() ? "" : ", ", each.strategy,
                           text(each.total() * here),
                           each.total() * here <= limit.bytes ? " (fits)" : "");
    }
    throw error(errc::usage,
                fmt::format("{} needs {} for parameters, gradients and optimizer states of {} "
                            "rank{} on a host, the limit is {} ({})",
                            strategy, text(need.total() * here), here, here == 1 ? "" : "s",
                            text(limit.bytes), limit.source))
        .with_hint(fmt::format("before activations; with {} ranks: {}", shape.ranks, all));
}

SKEIN_INLINE std::string memory_notice(std::string_view strategy, flat_store& store,
                                       std::span<const at::Tensor> states,
                                       const memory_shape& shape) {
    const auto* policy = policy_of(strategy);
    if (policy == nullptr) return {};
    const auto text = [](double bytes) { return report::human_bytes(bytes); };
    const auto planned = need_of(*policy, sizes_of(store.units()), shape);
    const bool one_host = policy->inside_hosts || shape.hosts == 1;
    const bool own_part =
        store.is_sharded() && (policy->shard_parameters || (one_host && shape.one_copy));
    const auto counted = count_memory(store, states, own_part);
    return fmt::format("memory per rank: parameters {}, gradients {}, optimizer {}; by formula "
                       "{}, {}, {}{}; process {}",
                       text(counted.parameters), text(counted.gradients), text(counted.optimizer),
                       text(planned.parameters), text(planned.gradients), text(planned.optimizer),
                       planned.gathered > 0 ? ", gathered at most " + text(planned.gathered) : "",
                       text(proportional_set_size()));
}

} // namespace detail
} // namespace skein::train

// ======== skein/train/offload.hpp
// Activation offload and compression: what a forward pass keeps for the backward pass lies in a
// file meanwhile, or takes half the bytes.
//
//     auto store = skein::train::offload_to_file("/var/tmp");        // the same bits
//     auto store = skein::train::offload_as_bf16();                  // half the memory
//     // in its blocks, which are skein::unit
//     skein::train::offload_activations(*model, store);
//     // or: whatever is saved in this scope
//     const skein::train::offload_scope here(store, *model);
//
// Autograd asks for hooks whenever it saves a tensor; these move it out and, when the backward pass
// wants it, back in. Together with checkpoint_activations() it is the inputs of the blocks that
// move. Parameters, buffers, small tensors (below 4 KiB) and expanded ones stay where they are, and
// so do tensors that are no float32 under bf16.
//
//   source: saved-tensor hooks as torch.autograd.graph.saved_tensors_hooks and save_on_cpu;
//   Rhu et al. 2016 (arXiv 1602.08124)


// ======== skein/train/recompute.hpp
// Activation checkpointing: memory for time. Between forward and backward a marked block keeps its
// inputs only, and computes its activations again when its gradients are wanted: a third more
// computing, and of L blocks' activations one block's at a time.
//
//     GPT model(options);                                    // its blocks are skein::unit
//     // all of them; (*model, 2): every second
//     skein::train::checkpoint_activations(*model);
//
// Works under every strategy and without one. The second call sees the random numbers, buffers and
// autocast of the first and leaves them as they are, so losses, gradients and running statistics
// have the bits that they have without. State that a block keeps elsewhere, a counter in a member,
// is changed twice: keep it in a buffer. Not under autograd::grad(), backward() for some inputs, or
// with create_graph: refused.


#include <cstddef>
#include <functional>
#include <string_view>

namespace skein::train {

/// Blocks that are skein::unit, in order of registration: each `every`-th one is computed again in
/// the backward pass from now on, the others are not. 0: none is.
///   returns  how many are
///   errors   invalid_argument when the model has no skein::unit. In a forward pass: not_supported
///            for a block whose arguments hold tensors inside of other types. In a backward pass:
///            not_supported where the second call may not be or is another one (see above;
///            parameters that were written to, train() or eval() since the forward, outputs of
///            other shapes), and over several ranks for a weight that such a block shares with the
///            rest of the model
std::size_t checkpoint_activations(torch::nn::Module& model, int every = 1);

/// Chooses blocks by their name in the model, as in named_modules().
using block_filter = std::function<bool(std::string_view)>;

/// The same for the blocks that `which` says yes to.
std::size_t checkpoint_activations(torch::nn::Module& model, const block_filter& which);

} // namespace skein::train


// ======== skein/train/detail/recompute.ipp
// Bodies of <skein/train/recompute.hpp>.


namespace skein::train {

SKEIN_INLINE std::size_t checkpoint_activations(torch::nn::Module& model,
                                                const block_filter& which) {
    std::size_t units = 0, chosen = 0;
    for (const auto& item : model.named_modules(std::string(), /*include_self=*/false)) {
        auto* const mark = dynamic_cast<unit_mark*>(item.value().get());
        if (mark == nullptr) continue;
        units += 1;
        const bool yes = which(item.key());
        mark->recompute(yes);
        chosen += yes ? 1 : 0;
    }
    if (units == 0)
        throw error(errc::invalid_argument, "the model has no skein::unit to compute again")
            .with_hint("declare its blocks with TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>)");
    return chosen;
}

SKEIN_INLINE std::size_t checkpoint_activations(torch::nn::Module& model, int every) {
    SKEIN_CHECK(every >= 0, "every {}-th block", every);
    if (every == 0) { // also of a model without blocks
        for (const auto& each : model.modules(/*include_self=*/false))
            if (auto* const mark = dynamic_cast<unit_mark*>(each.get())) mark->recompute(false);
        return 0;
    }
    std::size_t number = 0;
    return checkpoint_activations(
        model, [&](std::string_view) { return number++ % static_cast<std::size_t>(every) == 0; });
}

} // namespace skein::train


// ======== skein/train/offload.hpp, continued
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace skein::train {

/// A tensor that has been put away.
class stored_tensor {
public:
    virtual ~stored_tensor();
    /// Its values again, in the shape and strides that it had. May be called more than once.
    [[nodiscard]] virtual at::Tensor load() const = 0;
};

/// Where tensors are put away, and which are not. Used by several threads at once.
class activation_store {
public:
    /// Smaller tensors stay where they are.
    explicit activation_store(std::size_t at_least) noexcept : at_least_(at_least) {}
    activation_store(const activation_store&) = delete;
    activation_store& operator=(const activation_store&) = delete;
    virtual ~activation_store();

    /// Null: it stays where it is.
    ///   errors  of the disk
    [[nodiscard]] virtual std::unique_ptr<stored_tensor> put(const at::Tensor& tensor) = 0;
    /// Bytes that are put away at the moment, as they are stored; and tensors since the beginning.
    [[nodiscard]] virtual std::int64_t bytes() const = 0;
    [[nodiscard]] virtual std::int64_t tensors() const = 0;

    /// The frozen parameters and buffers of a model never move. Trainable parameters are known
    /// without. Not while another thread uses the store.
    void protect(const torch::nn::Module& model);
    [[nodiscard]] bool is_protected(const at::Tensor& tensor) const;
    [[nodiscard]] std::size_t at_least() const noexcept { return at_least_; }
    /// After so many bytes were put away: now and then the heap gives back what was theirs.
    void moved(std::size_t bytes);

private:
    std::size_t at_least_;
    std::atomic<std::size_t> since_trim_{0};
    std::unordered_set<const void*> protected_; // storages
    std::vector<at::Tensor> held_;              // so that nothing else gets their addresses
};

/// A file without a name in this folder, on whose disk there is space for the activations; it goes
/// with the store.
///   errors  of the disk
///   at_least  bytes of a tensor that is worth it
[[nodiscard]] std::shared_ptr<activation_store> offload_to_file(const std::string& folder,
                                                                std::size_t at_least = 4096);

/// In memory, rounded to bfloat16: each number is off by at most 2^-8 of itself, and a gradient
/// that is a product with it likewise, |x' g - x g| <= 2^-8 |x| |g|.
[[nodiscard]] std::shared_ptr<activation_store> offload_as_bf16(std::size_t at_least = 4096);

/// While it lives, tensors that autograd saves on this thread go to the store; null: none does.
/// Scopes nest. Not for a process in which Python runs autograd: there its engine has hooks of its
/// own.
class offload_scope {
public:
    explicit offload_scope(const std::shared_ptr<activation_store>& store);
    offload_scope(const std::shared_ptr<activation_store>& store, const torch::nn::Module& model);
    offload_scope(const offload_scope&) = delete;
    offload_scope& operator=(const offload_scope&) = delete;
    ~offload_scope();

private:
    std::shared_ptr<activation_store> before_;
};

/// From now on blocks that are skein::unit save their activations there; null: nowhere.
///   which    by name; all when empty
///   returns  how many do
///   errors   invalid_argument when the model has no skein::unit
std::size_t offload_activations(torch::nn::Module& model, std::shared_ptr<activation_store> store,
                                const block_filter& which = {});

} // namespace skein::train


// ======== skein/train/detail/offload.ipp
// Bodies of <skein/train/offload.hpp>.


#include <atomic>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include <malloc.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE stored_tensor::~stored_tensor() = default;
SKEIN_INLINE activation_store::~activation_store() = default;

SKEIN_INLINE void activation_store::moved(std::size_t bytes) {
    // What was freed lies between small blocks that live on, where glibc's heap gives aligned
    // requests no place; only trimming gives its pages back. The price is a page fault each when
    // they are used again.
    constexpr std::size_t often = std::size_t{32} << 20;
    since_trim_ += bytes;
    if (since_trim_ < often) return;
    since_trim_ = 0;
#if defined(__GLIBC__)
    ::malloc_trim(0);
#endif
}

SKEIN_INLINE void activation_store::protect(const torch::nn::Module& model) {
    const auto add = [this](const at::Tensor& t) {
        if (!t.defined() || !t.has_storage() || t.requires_grad()) return;
        if (protected_.insert(t.storage().unsafeGetStorageImpl()).second)
            held_.push_back(t.detach());
    };
    for (const auto& p : model.parameters()) add(p);
    for (const auto& b : model.buffers()) add(b);
}

SKEIN_INLINE bool activation_store::is_protected(const at::Tensor& tensor) const {
    return protected_.contains(tensor.storage().unsafeGetStorageImpl());
}

namespace detail {

/// A file whose ranges are given out and taken back. Removed at once: it lives as long as it is
/// open.
class scratch_file {
public:
    explicit scratch_file(const std::string& folder) {
        static std::atomic<int> made{0};
        posix_disk disk;
        disk.make_dirs(folder).value();
        const auto path = join_path(
            folder, fmt::format(".skein-activations-{}-{}", ::getpid(), made.fetch_add(1)));
        file_ = disk.open(path, open_mode::create_new).value();
        disk.remove(path).value();
    }

    [[nodiscard]] std::uint64_t write(byte_span bytes) {
        std::uint64_t at = 0;
        {
            const std::lock_guard lock(mutex_);
            used_ += bytes.size();
            at = take(bytes.size());
        }
        if (auto written = file_->write_at(at, bytes); !written) {
            give_back(at, bytes.size());
            throw written.error();
        }
        return at;
    }
    void read(std::uint64_t at, mut_byte_span into) {
        if (file_->read_at(at, into).value() != into.size())
            throw error(errc::io, "the file of activations is shorter than what was put there");
    }
    void give_back(std::uint64_t at, std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        used_ -= bytes;
        free_.emplace(bytes, at);
    }
    [[nodiscard]] std::int64_t used() const {
        const std::lock_guard lock(mutex_);
        return static_cast<std::int64_t>(used_);
    }

private:
    /// Steps save tensors of the same sizes again and again: one of the very size, or new memory.
    std::uint64_t take(std::size_t bytes) {
        if (const auto fits = free_.find(bytes); fits != free_.end()) {
            const auto at = fits->second;
            free_.erase(fits);
            return at;
        }
        return std::exchange(end_, end_ + bytes);
    }

    std::unique_ptr<file> file_;
    mutable std::mutex mutex_;
    std::multimap<std::size_t, std::uint64_t> free_;
    std::uint64_t end_ = 0, used_ = 0;
};

/// Its numbers one behind the other: in the order of the memory where that has no holes, else of
/// the indices.
SKEIN_INLINE at::Tensor packed(const at::Tensor& t) {
    if (t.is_non_overlapping_and_dense()) return t.as_strided({t.numel()}, {1});
    return t.contiguous().view({t.numel()});
}
SKEIN_INLINE at::Tensor unpacked(const at::Tensor& flat, const at::Tensor& into) {
    if (into.is_non_overlapping_and_dense())
        into.as_strided({into.numel()}, {1}).copy_(flat);
    else
        into.copy_(flat.view(into.sizes()));
    return into;
}

class tensor_in_file final : public stored_tensor {
public:
    tensor_in_file(std::shared_ptr<scratch_file> file, const at::Tensor& t)
        : file_(std::move(file)), sizes_(t.sizes().vec()), strides_(t.strides().vec()),
          options_(t.options()) {
        const auto flat = packed(t);
        bytes_ = flat.nbytes();
        at_ = file_->write({static_cast<const std::byte*>(flat.const_data_ptr()), bytes_});
    }
    ~tensor_in_file() override { file_->give_back(at_, bytes_); }

    [[nodiscard]] at::Tensor load() const override {
        auto out = at::empty_strided(sizes_, strides_, options_);
        const bool whole = out.is_non_overlapping_and_dense();
        auto flat = whole ? out.as_strided({out.numel()}, {1}) : at::empty(out.numel(), options_);
        file_->read(at_, {static_cast<std::byte*>(flat.mutable_data_ptr()), bytes_});
        return whole ? out : unpacked(flat, out);
    }

private:
    std::shared_ptr<scratch_file> file_;
    std::vector<std::int64_t> sizes_, strides_;
    at::TensorOptions options_;
    std::uint64_t at_ = 0;
    std::size_t bytes_ = 0;
};

class file_store final : public activation_store {
public:
    file_store(const std::string& folder, std::size_t at_least)
        : activation_store(at_least), file_(std::make_shared<scratch_file>(folder)) {}
    std::unique_ptr<stored_tensor> put(const at::Tensor& t) override {
        tensors_ += 1;
        return std::make_unique<tensor_in_file>(file_, t);
    }
    [[nodiscard]] std::int64_t bytes() const override { return file_->used(); }
    [[nodiscard]] std::int64_t tensors() const override { return tensors_; }

private:
    std::shared_ptr<scratch_file> file_;
    std::atomic<std::int64_t> tensors_{0};
};

class tensor_as_bf16 final : public stored_tensor {
public:
    tensor_as_bf16(std::shared_ptr<std::atomic<std::int64_t>> bytes, const at::Tensor& t)
        : all_(std::move(bytes)), sizes_(t.sizes().vec()), strides_(t.strides().vec()),
          flat_(packed(t).to(at::kBFloat16)) {
        *all_ += static_cast<std::int64_t>(flat_.nbytes());
    }
    ~tensor_as_bf16() override { *all_ -= static_cast<std::int64_t>(flat_.nbytes()); }
    [[nodiscard]] at::Tensor load() const override {
        return unpacked(flat_, at::empty_strided(sizes_, strides_, at::kFloat));
    }

private:
    std::shared_ptr<std::atomic<std::int64_t>> all_;
    std::vector<std::int64_t> sizes_, strides_;
    at::Tensor flat_;
};

class bf16_store final : public activation_store {
public:
    using activation_store::activation_store;
    std::unique_ptr<stored_tensor> put(const at::Tensor& t) override {
        if (t.scalar_type() != at::kFloat) return nullptr;
        tensors_ += 1;
        return std::make_unique<tensor_as_bf16>(bytes_, t);
    }
    [[nodiscard]] std::int64_t bytes() const override { return *bytes_; }
    [[nodiscard]] std::int64_t tensors() const override { return tensors_; }

private:
    std::shared_ptr<std::atomic<std::int64_t>> bytes_ =
        std::make_shared<std::atomic<std::int64_t>>(0);
    std::atomic<std::int64_t> tensors_{0};
};

/// Of this thread.
SKEIN_INLINE std::shared_ptr<activation_store>& current_store() {
    thread_local std::shared_ptr<activation_store> store;
    return store;
}

/// What autograd has in the place of one saved tensor.
class offload_hooks final : public torch::autograd::SavedVariableHooks {
public:
    explicit offload_hooks(std::shared_ptr<activation_store> store) : store_(std::move(store)) {}

    void call_pack_hook(const at::Tensor& t) override {
        const at::NoGradGuard no_grad;
        if (moves(t)) stored_ = store_->put(t.detach());
        if (stored_) return store_->moved(t.nbytes());
        // A leaf keeps no graph alive; anything else may be a result of the node that saves it.
        kept_ = t.is_leaf() ? t : t.detach();
        version_ = t._version();
    }
    at::Tensor call_unpack_hook() override {
        const at::NoGradGuard no_grad;
        if (stored_) return stored_->load();
        if (kept_._version() != version_)
            throw error(errc::invalid_argument,
                        "a tensor that the backward pass needs was changed in place");
        return kept_;
    }

private:
    [[nodiscard]] bool moves(const at::Tensor& t) const {
        if (!t.has_storage() || t.is_sparse() || !t.device().is_cpu() ||
            t.nbytes() < store_->at_least() || t.is_conj() || t.is_neg())
            return false;
        const auto& base = t.is_view() ? t._base() : t;
        if (base.is_leaf() && base.requires_grad()) return false; // a parameter
        for (std::int64_t i = 0; i < t.dim(); ++i)
            if (t.stride(i) == 0 && t.size(i) > 1) return false;
        return !store_->is_protected(t);
    }

    std::shared_ptr<activation_store> store_;
    std::unique_ptr<stored_tensor> stored_;
    at::Tensor kept_;
    std::int64_t version_ = 0;
};

/// The engine that C++ has, and hooks for what is saved: it asks its engine for them.
struct hooked_engine final : torch::autograd::Engine {
    std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks()
        override {
        const auto& store = current_store();
        return store ? std::make_unique<offload_hooks>(store) : nullptr;
    }
    static Engine& get() {
        static auto* const engine = new hooked_engine; // as the engine it stands for: never ends
        return *engine;
    }
};

SKEIN_INLINE void use_hooked_engine() {
    static std::once_flag once;
    std::call_once(once, [] { torch::autograd::set_default_engine_stub(&hooked_engine::get); });
}

} // namespace detail

SKEIN_INLINE std::shared_ptr<activation_store> offload_to_file(const std::string& folder,
                                                               std::size_t at_least) {
    return std::make_shared<detail::file_store>(folder, at_least);
}
SKEIN_INLINE std::shared_ptr<activation_store> offload_as_bf16(std::size_t at_least) {
    return std::make_shared<detail::bf16_store>(at_least);
}

SKEIN_INLINE offload_scope::offload_scope(const std::shared_ptr<activation_store>& store)
    : before_(std::exchange(detail::current_store(), store)) {
    if (store) detail::use_hooked_engine();
}
SKEIN_INLINE offload_scope::offload_scope(const std::shared_ptr<activation_store>& store,
                                          const torch::nn::Module& model)
    : offload_scope(store) {
    if (store) store->protect(model);
}
SKEIN_INLINE offload_scope::~offload_scope() { detail::current_store() = std::move(before_); }

SKEIN_INLINE std::size_t offload_activations(torch::nn::Module& model,
                                             std::shared_ptr<activation_store> store,
                                             const block_filter& which) {
    if (store) store->protect(model);
    std::size_t units = 0, chosen = 0;
    for (const auto& item : model.named_modules(std::string(), /*include_self=*/false)) {
        auto* const mark = dynamic_cast<unit_mark*>(item.value().get());
        if (mark == nullptr) continue;
        units += 1;
        const bool yes = store && (!which || which(item.key()));
        mark->offload(yes ? store : nullptr);
        chosen += yes ? 1 : 0;
    }
    if (units == 0)
        throw error(errc::invalid_argument,
                    "the model has no skein::unit whose activations to move")
            .with_hint("declare its blocks with TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>)");
    return chosen;
}

namespace detail {
SKEIN_INLINE std::shared_ptr<activation_store> exchange_store(
    std::shared_ptr<activation_store> store) {
    if (store) use_hooked_engine();
    return std::exchange(current_store(), std::move(store));
}
} // namespace detail

} // namespace skein::train

// ======== skein/train/reporter.hpp
// Rank 0's voice and pen: the run's folder, its metric files, the progress line. Silent elsewhere.
//
// Every rank owns one and calls it alike; only rank 0 opens files and prints. The folder's path is
// shared at construction, so that all ranks put their checkpoint shards into the same place.


#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

/// Tells the attempts of one job from those of others: the launcher's job id; without one
/// (torchrun's default id is "none" for every job) the launcher's process, which lives as long as
/// the job. Rank 0.
[[nodiscard]] std::string job_of(const context& ctx);

/// The folder of this run: with resume the one of that name; after a restart the one this job made
/// (its number may differ from the name asked for); else a new one. Rank 0 only.
[[nodiscard]] report::run_dir open_run_dir(const context& ctx, const run_config& config);

/// "pid 101 102", or by host when there are several: "pid 101 102 on a, 7 on b". One text
/// "<pid> <host>" per rank; after the first 16 only dots.
[[nodiscard]] std::string places_text(const std::vector<byte_buffer>& ranks);

/// "text: "a.txt" -> "b.txt", heads: 2 -> 4" against the config.json that is there; empty when
/// nothing differs or nothing can be read.
[[nodiscard]] std::string changed_settings(const report::run_dir& dir, const report::settings& now);

/// See the file's head. Not thread-safe. Until begin() nothing of a run that is there already is
/// changed.
class reporter {
public:
    /// Collective. settings: the user's part of config.json.
    reporter(const context& ctx, const run_config& config, const report::settings& settings);
    ~reporter();
    reporter(const reporter&) = delete;
    reporter& operator=(const reporter&) = delete;

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] std::string checkpoints() const { return path_ + "/checkpoints"; }

    /// Once, when it is known where the run begins. Rows after the first step are dropped.
    void begin(const start_info& start);

    /// One step's row; `evaluated` holds this step's evaluation, or nothing. A file that cannot be
    /// written is told once and tried again: training goes on.
    void step(const step_info& now, const std::vector<report::metric_value>& evaluated);

    /// The context is in another generation of its world, whose first rank goes on with the run's
    /// files. Collective.
    void rebind(const start_info& start);

    void saved(const checkpoint_info& checkpoint);
    void note(const std::string& text);
    /// What is not as it was asked for word by word.
    void notice(const std::string& text);
    void finish();

private:
    void show(const start_info& start);
    void greet(const start_info& start);
    void tell_start(const start_info& start, const std::string& name);
    void write_row(const step_info& now, const std::vector<report::metric_value>& evaluated);
    void say_evaluation(std::uint64_t step, const std::vector<report::metric_value>& evaluated);
    void say_times();
    void draw();
    template <class Write>
    void attempt(Write write, bool& failing, std::string_view what);

    const context* ctx_;
    const run_config* config_;
    bool first_;                      ///< it writes and speaks
    std::vector<byte_buffer> places_; // "<pid> <host>" of every rank
    std::string path_, name_;
    std::string changed_;     // the user's settings that differ from those the run had before
    std::string config_text_; // config.json, until it is known that the run goes on
    bool rows_failing_ = false, curve_failing_ = false;
    std::optional<report::run_dir> dir_;
    std::unique_ptr<report::progress> show_;
    double average_ = 0.0;      // of the seconds per step, exponential
    double waited_ = 0.0;       // of those that waited for data
    double seconds_ = 0.0;      // of all steps
    std::vector<double> spent_; // of them, in the order of detail::timings()
};

/// Rank 0's last screen of a fit() that ended: printed when the context ends, in the way of
/// config.output (text to stderr as all that the trainer says, JSON to stdout, nothing when quiet).
/// Tells the context how the run ended, and writes its result.json (run_result.hpp).
void leave_screen(const context& ctx, const run_config& config, const fit_result& result);

/// The last screen for a finished fit(), for a program that prints its own: add to `results` before
/// summary_text(). The one that fit() has left is not printed then.
[[nodiscard]] report::run_summary summarize(const context& ctx, const run_config& config,
                                            const fit_result& result);

} // namespace skein::train


// ======== skein/train/detail/reporter.ipp
// Bodies of <skein/train/reporter.hpp>.


// ======== skein/train/run_result.hpp
// How a run ended, for the program that asked for it and for those that come later.
//
//     auto result = skein::train::run<&loop>(config, how);      // run_result<outcome>
//     if (!result.ok()) return complain(result.error());
//     result.value().accuracy, result.best->value, result.newest_checkpoint
//
//     auto earlier = skein::train::load_result("runs/gpt");     // finished_run, of its result.json
//     for (auto& [name, points] : earlier.history()) ...
//
// Rank 0 writes result.json into the run's folder when training ends, whole or not at all; its
// paths are relative to the folder, which may move. A run that goes on takes an older one away.


#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

struct run_note;

/// One number of a run, and the step after which it was measured.
struct measured {
    std::string name{};
    double value = 0.0;
    std::uint64_t step = 0;

    friend bool operator==(const measured&, const measured&) = default;
};

/// What is known of a run that has ended. Without a fit(), or when it wrote no files, there is no
/// folder, and what is in it is not known.
struct finished_run {
    std::string name{}, path{}; ///< of its folder; empty: it wrote none
    std::uint64_t steps = 0;    ///< finished, of the whole run; 0 when its fit() did not end
    double seconds = 0.0;       ///< of the last start
    int world_size = 1;         ///< ranks
    int restarts = 0;           ///< after failures
    std::string stopped_by{};   ///< "SIGTERM", or what a callback says; empty: it ended as planned
    std::vector<measured> metrics{}; ///< the last value of each column of metrics.csv
    std::optional<measured> best{};  ///< of config's best metric; nothing: it was not measured
    std::string newest_checkpoint{}, best_checkpoint{}; ///< those that are there; or empty
    std::string value_json{}; ///< what the loop returned, where its fields are numbers and texts
    std::optional<skein::error> failure{};
    int failed_rank = -1; ///< whose failure it was; -1 if nobody's in particular

    [[nodiscard]] bool ok() const noexcept { return !failure; }
    [[nodiscard]] bool stopped() const noexcept { return !stopped_by.empty(); }
    /// Why it failed, with the rank: "rank 1 of 3: ...". Of a success there is none: asking for it
    /// ends the program.
    [[nodiscard]] const skein::error& error() const {
        SKEIN_CHECK(failure.has_value(), "a run that succeeded has no error");
        return *failure;
    }
    /// The last value of a metric, or nothing.
    [[nodiscard]] std::optional<double> metric(std::string_view called) const;
    /// All rows of metrics.csv by column; read from the folder now.
    ///   errors  not_found: no folder, or no such file in it (another host's, perhaps)
    [[nodiscard]] std::map<std::string, std::vector<report::curve_point>> history() const;
};

/// The same with what the loop returned.
template <class T>
class run_result : public finished_run {
public:
    explicit run_result(finished_run how, std::optional<T> value = std::nullopt)
        : finished_run(std::move(how)), value_(std::move(value)) {}

    /// Throws error() when the run failed.
    [[nodiscard]] T& value() & {
        if (!ok()) throw error();
        return *value_;
    }
    [[nodiscard]] const T& value() const& {
        if (!ok()) throw error();
        return *value_;
    }
    [[nodiscard]] T value() && {
        if (!ok()) throw error();
        return *std::move(value_);
    }

private:
    std::optional<T> value_;
};
/// Of a loop that returns nothing.
template <>
class run_result<void> : public finished_run {
public:
    explicit run_result(finished_run how) : finished_run(std::move(how)) {}

    /// Throws error() when the run failed.
    void value() const {
        if (!ok()) throw error();
    }
};

/// Reads the result.json of a run's folder, or that file.
///   errors  not_found: there is none, with what to do; malformed: cut short, no JSON, or no result
///           of a run; not_supported: another format; too_large
[[nodiscard]] finished_run load_result(const std::string& path);

namespace detail {
/// What a run's folder tells; without a folder what the note has.
[[nodiscard]] finished_run finished_of(const run_note& run);
/// result.json, durably; says in the log what went wrong. Without a folder it does nothing.
void write_result(const finished_run& run);
/// The bytes of the file, and back. `folder` is where it lies.
[[nodiscard]] std::string result_text(const finished_run& run);
[[nodiscard]] finished_run result_of(std::string_view text, const std::string& folder);
} // namespace detail

} // namespace skein::train


// ======== skein/train/detail/run_result.ipp
// Bodies of <skein/train/run_result.hpp>: what a folder tells, and result.json.


#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace skein::train {

SKEIN_INLINE std::optional<double> finished_run::metric(std::string_view called) const {
    for (const auto& m : metrics)
        if (m.name == called) return m.value;
    return std::nullopt;
}

SKEIN_INLINE std::map<std::string, std::vector<report::curve_point>> finished_run::history() const {
    if (path.empty())
        throw skein::error(errc::not_found, "this run has no history: it wrote no folder")
            .with_hint("let it train with a Trainer and config.write_files");
    std::map<std::string, std::vector<report::curve_point>> out;
    for (auto& column : report::read_metrics(path))
        out.emplace(std::move(column.name), std::move(column.points));
    if (out.empty())
        throw skein::error(errc::not_found,
                           fmt::format("no metrics.csv with rows in {}", path))
            .with_hint("did the run write files, and does this host see its folder?");
    return out;
}

namespace detail {

inline constexpr std::string_view result_format = "skein-result-1";
inline constexpr std::string_view result_file = "result.json";

/// The best point of a column; nothing without a number in it.
[[nodiscard]] SKEIN_INLINE std::optional<measured> best_of(const report::metrics_column& column,
                                                           bool lowest) {
    std::optional<measured> best;
    for (const auto& point : column.points) {
        if (!std::isfinite(point.y)) continue;
        if (best && (lowest ? point.y >= best->value : point.y <= best->value)) continue;
        best = measured{column.name, point.y, static_cast<std::uint64_t>(point.x)};
    }
    return best;
}

/// The newest checkpoint there is, and the one of the best metric.
SKEIN_INLINE void find_checkpoints(const run_note& run, finished_run& out) {
    posix_disk disk;
    const checkpointer saved(disk, run.path + "/checkpoints");
    const auto steps = saved.steps();
    if (steps.empty()) return;
    out.newest_checkpoint = saved.step_path(steps.back());
    std::optional<double> best;
    for (const auto step : steps) {
        const auto opened = checkpointer::open(disk, saved.step_path(step), false);
        if (!opened) continue; // removed meanwhile, or damaged
        const auto& metrics = opened->manifest().metrics;
        const auto at = metrics.find(run.best_metric);
        if (at == metrics.end() || !std::isfinite(at->second)) continue;
        if (best && (run.best_is_lowest ? at->second >= *best : at->second <= *best)) continue;
        best = at->second;
        out.best_checkpoint = saved.step_path(step);
    }
}

SKEIN_INLINE finished_run finished_of(const run_note& run) {
    finished_run out;
    out.name = run.name;
    out.path = run.path;
    out.steps = run.steps;
    out.seconds = run.seconds;
    out.stopped_by = run.stopped_by;
    if (!run.path.empty()) {
        for (const auto& column : report::read_metrics(run.path)) {
            if (column.points.empty()) continue;
            const auto& last = column.points.back();
            out.metrics.push_back({column.name, last.y, static_cast<std::uint64_t>(last.x)});
            if (column.name == run.best_metric) out.best = best_of(column, run.best_is_lowest);
        }
        find_checkpoints(run, out);
    }
    if (out.metrics.empty() && run.has_ended) {
        out.metrics.push_back({"loss", run.loss, run.steps});
        if (!std::isnan(run.val_loss))
            out.metrics.push_back({"val_loss", run.val_loss, run.val_step});
    }
    return out;
}

// ---- the file ----------------------------------------------------------------------------------

[[nodiscard]] SKEIN_INLINE json json_of(const measured& m) {
    return {{"name", m.name}, {"value", m.value}, {"step", m.step}};
}

[[nodiscard]] SKEIN_INLINE std::string within(const std::string& path, const std::string& folder) {
    return path.starts_with(folder + "/") ? path.substr(folder.size() + 1) : path;
}

SKEIN_INLINE std::string result_text(const finished_run& run) {
    json metrics = json::array();
    for (const auto& m : run.metrics) metrics.push_back(json_of(m));
    json all{{"format", result_format},
             {"name", run.name},
             {"steps", run.steps},
             {"seconds", run.seconds},
             {"world_size", run.world_size},
             {"restarts", run.restarts},
             {"stopped_by", run.stopped_by},
             {"metrics", std::move(metrics)},
             {"best", run.best ? json_of(*run.best) : json()},
             {"newest_checkpoint", within(run.newest_checkpoint, run.path)},
             {"best_checkpoint", within(run.best_checkpoint, run.path)},
             {"value", json()},
             {"error", json()}};
    if (!run.value_json.empty()) all["value"] = parse_json(run.value_json).value();
    if (run.failure)
        all["error"] = {{"code", to_string(run.failure->code())},
                        {"text", run.failure->text()},
                        {"where", run.failure->where()},
                        {"cause", run.failure->cause()},
                        {"hint", run.failure->hint()},
                        {"rank", run.failed_rank}};
    return dump_json(all, 2) + "\n";
}

[[nodiscard]] SKEIN_INLINE measured measured_of(const json& from) {
    measured out;
    out.name = json_string(from, "name").value();
    out.step = json_uint(from, "step").value();
    // JSON has no word for what is not finite.
    const bool is_null = from.contains("value") && from.at("value").is_null();
    out.value = is_null ? std::numeric_limits<double>::quiet_NaN()
                        : json_double(from, "value").value();
    return out;
}

[[nodiscard]] SKEIN_INLINE skein::error failure_of(const json& from) {
    const auto code = json_string(from, "code").value();
    auto known = errc::unknown;
    for (std::uint16_t number = 1; number <= static_cast<std::uint16_t>(errc::internal); ++number)
        if (to_string(static_cast<errc>(number)) == code) known = static_cast<errc>(number);
    return skein::error(known, json_string(from, "text").value())
        .with_where(json_string(from, "where").value())
        .with_cause(json_string(from, "cause").value())
        .with_hint(json_string(from, "hint").value());
}

[[nodiscard]] SKEIN_INLINE skein::error missing_member(const std::string& key,
                                                       std::string_view wanted) {
    return skein::error(errc::malformed, fmt::format("'{}' is missing or is not {}", key, wanted));
}

[[nodiscard]] SKEIN_INLINE int small_number(const json& from, const std::string& key, int least) {
    const auto number = json_double(from, key).value();
    if (!(number >= least) || number > 1e9) throw missing_member(key, "a whole number");
    return static_cast<int>(number);
}

SKEIN_INLINE finished_run read_result(const json& all, const std::string& folder) {
    finished_run out;
    out.path = folder;
    out.name = json_string(all, "name").value();
    out.steps = json_uint(all, "steps").value();
    out.seconds = json_double(all, "seconds").value();
    out.world_size = small_number(all, "world_size", 1);
    out.restarts = small_number(all, "restarts", 0);
    out.stopped_by = json_string(all, "stopped_by").value();
    if (!all.contains("metrics") || !all.at("metrics").is_array())
        throw missing_member("metrics", "an array");
    for (const auto& m : all.at("metrics")) out.metrics.push_back(measured_of(m));
    for (const auto* key : {"best", "value", "error"})
        if (!all.contains(key)) throw missing_member(key, "a value or null");
    if (!all.at("best").is_null()) out.best = measured_of(all.at("best"));
    if (!all.at("value").is_null()) out.value_json = dump_json(all.at("value"));
    if (const auto& failed = all.at("error"); !failed.is_null()) {
        out.failure = failure_of(failed);
        out.failed_rank = small_number(failed, "rank", -1);
    }
    const auto whole = [&](const std::string& path) {
        return path.empty() || path.starts_with('/') ? path : folder + "/" + path;
    };
    out.newest_checkpoint = whole(json_string(all, "newest_checkpoint").value());
    out.best_checkpoint = whole(json_string(all, "best_checkpoint").value());
    return out;
}

SKEIN_INLINE finished_run result_of(std::string_view text, const std::string& folder) {
    const auto again = "it is written whole when training ends: copy it again, or train again";
    if (!text.ends_with("}\n"))
        throw skein::error(errc::malformed,
                           fmt::format("it is cut short after {} bytes", text.size()))
            .with_hint(again);
    const auto all = parse_json(text);
    if (!all) throw skein::error(all.error()).with_hint(again);
    const auto format = json_string(*all, "format");
    if (!format || !format->starts_with("skein-result-"))
        throw skein::error(errc::malformed, "it is not the result of a run: no format "
                                            "skein-result-N in it")
            .with_hint("name the folder of a run, or its result.json");
    if (*format != result_format)
        throw skein::error(errc::not_supported, fmt::format("not supported: format {}, this "
                                                            "program reads {}",
                                                            *format, result_format))
            .with_hint("read it with the release that wrote it, or a newer one");
    return read_result(*all, folder);
}

SKEIN_INLINE void write_result(const finished_run& run) {
    if (run.path.empty()) return;
    const auto file = join_path(run.path, result_file);
    try {
        const auto text = result_text(run);
        posix_disk disk(link_policy::refuse);
        disk.replace(file, as_bytes(std::string_view(text))).value();
    } catch (const skein::error& why) { // the run is what it was without the file
        logging::warn("train", fmt::format("{} cannot be written: {}", file, why.what()));
    }
}

} // namespace detail

SKEIN_INLINE finished_run load_result(const std::string& path) {
    posix_disk disk;
    auto file = path;
    if (const auto there = disk.status(path); there && there->is_directory)
        file = join_path(path, detail::result_file);
    const auto bytes = disk.read_whole(file, json_limits{}.max_bytes);
    if (!bytes && bytes.error().code() == errc::not_found)
        throw error(errc::not_found, fmt::format("{} is not there", file))
            .with_hint("a run has one when its training has ended: is it still at work, or was it "
                       "killed? Its metrics.csv and checkpoints are in its folder all the same");
    if (!bytes) throw bytes.error();
    try {
        return detail::result_of(as_text(*bytes), parent_path(file));
    } catch (const error& why) {
        throw error(why).with_where(file);
    }
}

} // namespace skein::train


// ======== skein/train/detail/reporter.ipp, continued
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/core.h>

#include <unistd.h>

namespace skein::train {

namespace detail {
/// The settings of a run as JSON, for config.json and for people.
SKEIN_INLINE json config_json(const run_config& c) {
    const auto& saves = c.checkpoint;
    const bool lowest = saves.keep_best.order == metric_order::lowest;
    const auto seconds = [](duration d) { return std::chrono::duration<double>(d).count(); };
    return json{
        {"name", c.name},
        {"max_steps", c.max_steps},
        {"epochs", c.epochs},
        {"global_batch", c.global_batch},
        {"accumulation", c.accumulation},
        {"seed", c.seed},
        {"clip", c.clip},
        {"clip_value", c.clip_value},
        {"precision", c.precision},
        {"eval_every", c.eval_every},
        {"eval_samples", c.eval_samples},
        {"scaling", {{"workers", c.scaling.workers}, {"threads", std::max(c.scaling.threads, 1)}}},
        {"checkpoint",
         {{"enabled", saves.enabled},
          {"every", saves.every},
          {"keep_last", std::max(saves.keep_last, 1)},
          {"keep_best",
           {{"k", std::max(saves.keep_best.k, 0)},
            {"metric", saves.keep_best.metric},
            {"order", lowest ? "lowest" : "highest"}}},
          {"on_stop", saves.on_stop}}},
        {"failure",
         {{"max_failures", c.failure.max_failures},
          {"backoff_s", seconds(c.failure.backoff)},
          {"collective_timeout_s", seconds(c.failure.collective_timeout)},
          {"stop_grace_s", seconds(c.failure.stop_grace)}}},
        {"tokens_per_sample", c.tokens_per_sample}};
}
SKEIN_INLINE std::vector<report::metric_value> timings(const step_timing& t) {
    return {{"data_s", t.data},       {"forward_s", t.forward},     {"backward_s", t.backward},
            {"exposed_s", t.exposed}, {"optimizer_s", t.optimizer}, {"overlap", t.overlap}};
}
} // namespace detail

namespace detail {
SKEIN_INLINE run_note note_of(const run_config& config, const std::string& name,
                              const std::string& path) {
    run_note note;
    note.name = name.empty() ? config.name : name;
    std::error_code failed; // main() may go to another folder
    if (!path.empty()) note.path = std::filesystem::absolute(path, failed).lexically_normal();
    if (failed) note.path = path;
    note.best_metric = config.checkpoint.keep_best.metric;
    note.best_is_lowest = config.checkpoint.keep_best.order == metric_order::lowest;
    return note;
}
[[nodiscard]] SKEIN_INLINE std::string stopped_by(const fit_result& result) {
    if (!result.stopped) return {};
    return result.stop_signal == SIGINT        ? "SIGINT"
           : result.stop_signal == SIGTERM     ? "SIGTERM"
           : result.stop_reason.empty() ? "request"
                                        : result.stop_reason;
}
/// For whoever asks how the run ended; rank 0 writes it down.
SKEIN_INLINE void note_end(const context& ctx, const run_config& config,
                           const fit_result& result) {
    auto note = note_of(config, result.run_name, result.run_path);
    note.has_ended = true;
    note.steps = result.steps;
    note.seconds = result.seconds;
    note.loss = result.loss;
    note.val_loss = result.val_loss;
    note.val_step = result.val_step;
    note.stopped_by = stopped_by(result);
    ctx.note_run(note);
    if (!ctx.is_first() || note.path.empty()) return;
    auto ended = finished_of(note);
    ended.world_size = ctx.world_size();
    ended.restarts = ctx.attempt();
    write_result(ended);
}
} // namespace detail

SKEIN_INLINE std::string job_of(const context& ctx) {
    if (!ctx.job_id().empty() && ctx.job_id() != "none") return ctx.job_id();
    const auto parent = ::getppid();
    const auto stat = read_small_file(fmt::format("/proc/{}/stat", parent).c_str());
    std::istringstream after_name(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    std::string started; // field 22, the name being field 2
    for (int field = 3; field <= 22; ++field) after_name >> started;
    return fmt::format("{}/{}/{}", boot_id(), parent, started);
}

SKEIN_INLINE report::run_dir open_run_dir(const context& ctx, const run_config& config) {
    if (config.resume == resume_mode::latest)
        return report::run_dir::create(config.runs_dir, config.name, {.resume = true});
    if (ctx.attempt() == 0) return report::run_dir::create(config.runs_dir, config.name);
    auto name = config.name;
    const auto is_there = [&] {
        std::error_code
            ignored; // what cannot be looked at is not ours; create() says what is wrong
        return std::filesystem::is_directory(config.runs_dir + "/" + name, ignored);
    };
    for (int number = 2; is_there(); ++number) {
        if (report::run_dir::written_by(config.runs_dir + "/" + name) == job_of(ctx))
            return report::run_dir::create(config.runs_dir, name, {.resume = true});
        name = fmt::format("{}.{}", config.name, number);
    }
    return report::run_dir::create(config.runs_dir,
                                   config.name); // the first attempt did not get this far
}

SKEIN_INLINE std::string places_text(const std::vector<byte_buffer>& ranks) {
    std::string out = "pid", last;
    bool one = true;
    const auto host_of = [](const byte_buffer& rank) {
        const auto text = as_text(rank);
        return std::string(text.substr(std::min(text.size(), text.find(' ') + 1)));
    };
    for (const auto& rank : ranks) one = one && host_of(rank) == host_of(ranks[0]);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        if (r == 16) return out + " ...";
        out += " " + std::string(as_text(ranks[r]).substr(0, as_text(ranks[r]).find(' ')));
        const auto host = host_of(ranks[r]);
        if (!one && (r + 1 == ranks.size() || host_of(ranks[r + 1]) != host))
            out += " on " + host + (r + 1 == ranks.size() ? "" : ",");
    }
    return out;
}

SKEIN_INLINE std::string changed_settings(const report::run_dir& dir,
                                          const report::settings& settings) {
    std::optional<json> old;
    try {
        if (const auto text = dir.read_config()) old = parse_json(std::string_view(*text)).value();
    } catch (const error&) { // a damaged one is written anew
    }
    const json now = parse_json(settings.text()).value();
    std::string out;
    if (!old || !old->contains("settings") || !old->at("settings").is_object()) return out;
    for (const auto& [key, before] : old->at("settings").items())
        if (now.contains(key) && now.at(key) != before)
            out += fmt::format("{}{}: {} -> {}", out.empty() ? "" : ", ", key, dump_json(before),
                               dump_json(now.at(key)));
    return out;
}

SKEIN_INLINE reporter::reporter(const context& ctx, const run_config& config,
                                const report::settings& settings)
    : ctx_(&ctx), config_(&config), first_(ctx.is_first()) {
    places_ = gather_bytes(ctx, as_bytes(fmt::format("{} {}", ::getpid(), ctx.host())));
    if (!config.write_files && !config.checkpoint.enabled) return;
    if (first_) {
        dir_.emplace(open_run_dir(ctx, config));
        auto all = detail::config_json(config);
        all["name"] = dir_->name(); // the one in use
        all["world_size"] = ctx.world_size();
        all["job_id"] = job_of(ctx);
        all["settings"] = parse_json(settings.text()).value();
        changed_ = changed_settings(*dir_, settings);
        config_text_ = dump_json(all, 2) + "\n";
        // The folder of a run that may refuse to go on stays as it is until begin().
        if (config.resume != resume_mode::latest && ctx.attempt() == 0)
            dir_->write_config(std::exchange(config_text_, {}));
        path_ = dir_->path();
        name_ = dir_->name();
    }
    path_ = from_first(ctx, path_);
    name_ = from_first(ctx, name_);
    ctx.note_run(detail::note_of(config, name_, path_));
}

SKEIN_INLINE reporter::~reporter() = default;

SKEIN_INLINE void reporter::begin(const start_info& start) {
    if (!first_) return;
    if (dir_) dir_->truncate_after(start.first_step);
    if (dir_) dir_->remove_result(); // of an end that is none any more
    if (dir_ && !config_text_.empty()) dir_->write_config(std::exchange(config_text_, {}));
    show(start);
    greet(start);
}

SKEIN_INLINE void reporter::show(const start_info& start) {
    report::progress_options options;
    options.name = name_.empty() ? config_->name : name_;
    options.total = start.total_steps;
    options.first = start.first_step;
    options.samples = config_->tokens_per_sample <= 0;
    switch (config_->output) {
    case output_mode::automatic: options.mode = report::progress_mode::automatic; break;
    case output_mode::plain: options.mode = report::progress_mode::plain; break;
    case output_mode::quiet: options.mode = report::progress_mode::quiet; break;
    case output_mode::json: options.mode = report::progress_mode::json_lines; break;
    }
    if (config_->output == output_mode::json)
        options.write = [](std::string_view text) {
            std::fwrite(text.data(), 1, text.size(), stdout);
            std::fflush(stdout);
        };
    show_ = std::make_unique<report::progress>(std::move(options));
}

SKEIN_INLINE void reporter::rebind(const start_info& start) {
    if (first_ && !ctx_->is_first()) { // another rank takes over; its lock wants to be free
        dir_.reset();
        show_.reset();
        first_ = false;
    }
    const auto before = places_.size();
    places_ = gather_bytes(*ctx_, as_bytes(fmt::format("{} {}", ::getpid(), ctx_->host())));
    if (!ctx_->is_first()) return;
    if (!std::exchange(first_, true)) {
        if (!path_.empty())
            dir_.emplace(report::run_dir::create(config_->runs_dir, name_, {.resume = true}));
        show(start);
    }
    if (dir_) dir_->truncate_after(start.first_step);
    show_->notice(fmt::format("after step {} the run goes on with {} worker{} instead of {}: {}",
                              start.first_step, places_.size(), places_.size() == 1 ? "" : "s",
                              before, places_text(places_)));
}

/// What fails here costs a curve, not the training: said once, tried again with the next call.
template <class Write>
void reporter::attempt(Write write, bool& failing, std::string_view what) {
    try {
        write();
        failing = false;
    } catch (const error& why) {
        if (!std::exchange(failing, true) && show_)
            show_->failure(fmt::format(
                "{} cannot be written: {}; training goes on, it is tried again", what, why.what()));
    }
}

SKEIN_INLINE void reporter::step(const step_info& now,
                                 const std::vector<report::metric_value>& evaluated) {
    if (!first_) return;
    const auto smooth = [](double before, double newest) {
        return before == 0.0 ? newest : 0.9 * before + 0.1 * newest;
    };
    average_ = smooth(average_, now.seconds);
    waited_ = smooth(waited_, now.timing.data);
    write_row(now, evaluated);
    seconds_ += now.seconds;
    const auto parts = detail::timings(now.timing);
    spent_.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) spent_[i] += parts[i].value;
    report::progress_update update;
    update.step = now.step;
    update.loss = now.loss;
    update.step_seconds = average_;
    if (average_ > 0) update.data_share = waited_ / average_;
    if (average_ > 0) update.tokens_per_s = now.tokens_per_s * now.seconds / average_;
    update.more = {{"lr", now.lr}};
    for (const auto& m : *now.metrics)
        if (m.name != "loss" && m.name != "lr") update.also.emplace_back(m.name, m.value);
    for (const auto& t : parts) update.also.emplace_back(t.name, t.value);
    show_->update(update);
    if (evaluated.empty()) return;
    say_evaluation(now.step, evaluated);
    draw();
}

SKEIN_INLINE void reporter::write_row(const step_info& now,
                                      const std::vector<report::metric_value>& evaluated) {
    if (!dir_ || !config_->write_files) return;
    report::metrics_row row{.step = now.step, .values = *now.metrics, .timings = {}};
    row.values.insert(row.values.end(), evaluated.begin(), evaluated.end());
    row.timings = {
        {config_->tokens_per_sample > 0 ? "tokens_per_s" : "samples_per_s", now.tokens_per_s},
        {"step_seconds", now.seconds}};
    for (const auto& each : detail::timings(now.timing)) row.timings.push_back(each);
    attempt([&] { dir_->append(row); }, rows_failing_, "a row of metrics");
}

SKEIN_INLINE void reporter::say_evaluation(std::uint64_t step,
                                           const std::vector<report::metric_value>& evaluated) {
    if (show_->mode() == report::progress_mode::json_lines) {
        ordered_json o = {{"event", "eval"}, {"step", step}};
        for (const auto& m : evaluated) o["metrics"][m.name] = m.value;
        return show_->event(dump_json(o));
    }
    std::string text = fmt::format("step {}:", step);
    for (const auto& m : evaluated) text += fmt::format(" {} {:.4f}", m.name, m.value);
    show_->note(text);
}

SKEIN_INLINE void reporter::saved(const checkpoint_info& checkpoint) {
    if (!show_) return;
    show_->event(dump_json(ordered_json{{"event", "checkpoint"},
                                        {"step", checkpoint.step},
                                        {"path", checkpoint.path},
                                        {"bytes", checkpoint.bytes},
                                        {"seconds", checkpoint.seconds}}));
}

SKEIN_INLINE void reporter::note(const std::string& text) {
    if (show_) show_->note(text);
}
SKEIN_INLINE void reporter::notice(const std::string& text) {
    if (show_) show_->notice(text);
}
SKEIN_INLINE void reporter::finish() {
    if (dir_) attempt([&] { dir_->flush(); }, rows_failing_, "a row of metrics");
    if (dir_ && dir_->waiting() > 0)
        show_->failure(
            fmt::format("{} rows of metrics are lost: they could not be written", dir_->waiting()));
    if (show_) show_->finish();
    say_times();
    draw();
}

/// Where the time of all steps went, in one line.
SKEIN_INLINE void reporter::say_times() {
    if (!show_ || seconds_ <= 0 || spent_.size() != 6) return;
    const auto share = [&](std::size_t i) { return 100.0 * spent_[i] / seconds_; };
    auto text = fmt::format(
        "step time, each of its slowest rank: data {:.0f} %, forward {:.0f} %, backward {:.0f} %, "
        "optimizer {:.0f} %",
        share(0), share(1), share(2), share(4));
    if (ctx_->world_size() > 1) text += fmt::format(", waiting for other ranks {:.0f} %", share(3));
    show_->note(text);
}

/// What runs where.
SKEIN_INLINE void reporter::tell_start(const start_info& start, const std::string& name) {
    const auto* comm = ctx_->comm();
    if (show_->mode() == report::progress_mode::json_lines) {
        ordered_json o = {{"event", "start"},
                          {"name", name},
                          {"path", path_},
                          {"parameters", start.parameters},
                          {"first_step", start.first_step},
                          {"total", start.total_steps},
                          {"workers", ctx_->world_size()},
                          {"strategy", start.strategy}};
        if (comm != nullptr) o["communicator"] = comm->name();
        for (const auto& rank : places_)
            o["pids"].push_back(std::strtol(std::string(as_text(rank)).c_str(), nullptr, 10));
        show_->event(dump_json(o));
    } else {
        const auto steps = start.total_steps > 0 ? fmt::format("{} steps of ", start.total_steps)
                                                 : std::string("steps of ");
        auto what = fmt::format("{}: {} parameters, {}{} samples", name,
                                report::human_count(static_cast<double>(start.parameters)), steps,
                                config_->global_batch);
        if (!start.epochs.empty()) what += ", " + start.epochs;
        if (!path_.empty()) what += ", files in " + path_;
        show_->note(what);
        show_->note(fmt::format(
            "{}{}{}{} worker{}: {}", start.strategy, comm != nullptr ? " over " + comm->name() : "",
            start.strategy.empty() && comm == nullptr ? "" : ", ", ctx_->world_size(),
            ctx_->world_size() == 1 ? "" : "s", places_text(places_)));
    }
}

/// What runs where, and what is not as it was asked for.
SKEIN_INLINE void reporter::greet(const start_info& start) {
    const auto name = name_.empty() ? config_->name : name_;
    tell_start(start, name);
    if (dir_)
        for (const auto& text : dir_->notices()) show_->notice(text);
    if (!start.resumed_from.empty()) {
        show_->note(
            fmt::format("resumed after step {} from {}", start.first_step, start.resumed_from));
        if (!changed_.empty()) show_->notice("the run goes on with other settings: " + changed_);
    } else if (config_->resume == resume_mode::latest && ctx_->attempt() == 0) {
        show_->notice(fmt::format("nothing to resume in {}: starting at step 0",
                                  path_.empty() ? config_->runs_dir + "/" + name : path_));
    }
    if (start.first_step > 0 && start.total_steps > 0 && start.first_step >= start.total_steps)
        show_->notice(fmt::format("nothing left to train: step {} of {}; give more steps{}",
                                  start.first_step, start.total_steps,
                                  config_->command.empty() || config_->steps_flag.empty()
                                      ? ""
                                      : " (" + config_->steps_flag + ")"));
}

SKEIN_INLINE void reporter::draw() {
    if (!dir_ || !config_->write_files) return;
    attempt([&] { dir_->write_svg({"loss", "val_loss"}, name_); }, curve_failing_, "loss.svg");
}

namespace detail {

/// What fit() has to say at last, of each fit() in turn; said when the context ends.
class last_screen {
public:
    last_screen() = default;
    last_screen(const last_screen&) = delete;
    last_screen& operator=(const last_screen&) = delete;
    ~last_screen() {
        for (const auto& text : texts_) print(text);
    }
    void add(std::string text, bool json) { texts_.push_back({std::move(text), json}); }
    /// The program says the last one itself.
    void drop_last() {
        if (!texts_.empty()) texts_.pop_back();
    }

private:
    struct screen_text {
        std::string text;
        bool json;
    };
    static void print(const screen_text& what) noexcept {
        auto* const to = what.json ? stdout : stderr;
        std::fflush(stdout); // behind what the program has said, also on one terminal
        std::fwrite(what.text.data(), 1, what.text.size(), to);
        std::fflush(to);
    }
    std::vector<screen_text> texts_;
};

/// A path as it works where the program was started, to which a person goes: main() may have gone
/// to another folder.
[[nodiscard]] SKEIN_INLINE std::string path_for_people(const std::string& path) {
    if (path.empty() || path.starts_with('/') || !has_left_start_folder()) return path;
    std::error_code failed;
    const auto whole = std::filesystem::absolute(path, failed);
    return failed ? path : whole.lexically_normal().string();
}

[[nodiscard]] SKEIN_INLINE report::run_summary summary_of(const context& ctx,
                                                          const run_config& config,
                                                          const fit_result& result) {
    report::run_summary out;
    out.name = result.run_name.empty() ? config.name : result.run_name;
    out.asked = config.name;
    out.path = path_for_people(result.run_path);
    out.steps = result.steps;
    out.first = result.first_step;
    out.total = result.total > 0 ? result.total : static_cast<std::uint64_t>(config.max_steps);
    out.seconds = result.seconds;
    out.samples = config.tokens_per_sample <= 0;
    if (result.tokens_per_s > 0) out.tokens_per_s = result.tokens_per_s;
    out.peak_rss_bytes = result.peak_rss_bytes;
    out.workers = ctx.world_size();
    out.restarts = ctx.attempt();
    out.results = {{"loss", result.loss}};
    if (result.val_loss == result.val_loss) out.results.push_back({"val_loss", result.val_loss});
    out.val_step = result.val_step;
    out.checkpoint = path_for_people(result.checkpoint);
    out.command = config.command;
    out.launcher = ctx.launcher();
    out.resume_flag = config.resume_flag;
    out.steps_flag = config.steps_flag;
    out.name_flag = config.name_flag;
    if (config.command.empty()) { // a program whose flags nobody knows
        out.command = command_line();
        out.resume_flag = out.steps_flag = out.name_flag = "";
    }
    if (result.stopped)
        out.stopped = result.stop_signal == SIGINT    ? "by SIGINT"
                      : result.stop_signal == SIGTERM ? "by SIGTERM"
                      : result.stop_reason.empty()    ? "on request"
                                                      : "by " + result.stop_reason;
    return out;
}

} // namespace detail

SKEIN_INLINE void leave_screen(const context& ctx, const run_config& config,
                               const fit_result& result) {
    detail::note_end(ctx, config, result);
    if (!ctx.is_first() || config.output == output_mode::quiet) return;
    const bool json = config.output == output_mode::json;
    const auto summary = detail::summary_of(ctx, config, result);
    if (!ctx.screen()) ctx.screen() = std::make_shared<detail::last_screen>();
    ctx.screen()->add(json ? report::summary_json(summary) + "\n" : report::summary_text(summary),
                      json);
}

SKEIN_INLINE report::run_summary summarize(const context& ctx, const run_config& config,
                                           const fit_result& result) {
    if (ctx.screen()) ctx.screen()->drop_last();
    return detail::summary_of(ctx, config, result);
}

} // namespace skein::train

// ======== skein/train/schedule.hpp
// Learning-rate schedules: pure functions of the step, so that resuming needs no state.
//
//     schedule lr = warmup_cosine{.peak = 6e-4, .floor = 6e-5, .warmup = 100, .total = 2000};
//     schedule mine = [](std::uint64_t step) { return 1e-3 / std::sqrt(1.0 + double(step)); };
//     optimizer.step(learning_rate(lr, step));
//
// Steps count from 0. Every schedule warms up linearly: lr = peak * (step + 1) / warmup, so that
// the last warm-up step runs at the peak. source: Goyal et al. 2017 (arXiv 1706.02677) section 2.2


#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <numbers>
#include <string_view>
#include <type_traits>
#include <utility>

namespace skein::train {

namespace detail {

/// Position in (0, 1] of the decay after the warm-up: 0 at its first step, 1 from step `total` on.
[[nodiscard]] inline double decay_position(std::uint64_t step, std::uint64_t warmup,
                                           std::uint64_t total) noexcept {
    if (step >= total) return 1.0;
    if (total <= warmup || step <= warmup) return 0.0;
    return static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
}

/// peak * (step + 1) / warmup, or 1 behind the warm-up.
[[nodiscard]] inline double warmup_factor(std::uint64_t step, std::uint64_t warmup) noexcept {
    return step < warmup ? static_cast<double>(step + 1) / static_cast<double>(warmup) : 1.0;
}

} // namespace detail

/// The peak for ever, after a warm-up.
struct constant_rate {
    double peak = 1e-3;
    std::uint64_t warmup = 0; ///< steps

    [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
        return peak * detail::warmup_factor(step, warmup);
    }
    void describe(description& to) const {
        to.name = "constant_rate";
        to.add("learning rate", peak).add("warm-up", warmup);
    }
};

/// A half cosine from the peak to the floor, reached at step `total` and kept.
///   lr = floor + (peak - floor) * (1 + cos(pi * t)) / 2, t = (step - warmup) / (total - warmup)
///   source: Loshchilov and Hutter 2017 (arXiv 1608.03983) equation 5
struct warmup_cosine {
    double peak = 1e-3;
    double floor = 0.0;
    std::uint64_t warmup = 0; ///< steps
    std::uint64_t total = 1;  ///< steps, warm-up included

    [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
        if (step < warmup) return peak * detail::warmup_factor(step, warmup);
        const double t = detail::decay_position(step, warmup, total);
        return floor + (peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * t));
    }
    void describe(description& to) const {
        to.name = "warmup_cosine";
        to.add("learning rate", peak).add("warm-up", warmup);
        to.add("lowest learning rate", floor).add("steps of the schedule", total);
    }
};

/// A straight line from the peak to the floor, reached at step `total` and kept.
///   lr = peak + (floor - peak) * t, t as in warmup_cosine      source: Devlin et al. 2018, A.2
struct warmup_linear {
    double peak = 1e-3;
    double floor = 0.0;
    std::uint64_t warmup = 0; ///< steps
    std::uint64_t total = 1;  ///< steps, warm-up included

    [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
        if (step < warmup) return peak * detail::warmup_factor(step, warmup);
        return peak + (floor - peak) * detail::decay_position(step, warmup, total);
    }
    void describe(description& to) const {
        to.name = "warmup_linear";
        to.add("learning rate", peak).add("warm-up", warmup);
        to.add("lowest learning rate", floor).add("steps of the schedule", total);
    }
};

/// Multiplied by gamma every `every` steps.
///   lr = peak * gamma ^ floor((step - warmup) / every)     source: torch.optim.lr_scheduler.StepLR
struct step_decay {
    double peak = 1e-3;
    double gamma = 0.1;
    std::uint64_t every = 1000; ///< steps
    std::uint64_t warmup = 0;   ///< steps

    [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
        if (step < warmup) return peak * detail::warmup_factor(step, warmup);
        const auto drops = (step - warmup) / std::max<std::uint64_t>(every, 1);
        return peak * std::pow(gamma, static_cast<double>(drops));
    }
    void describe(description& to) const {
        to.name = "step_decay";
        to.add("learning rate", peak).add("warm-up", warmup);
        to.add("gamma", gamma).add("steps between drops", every);
    }
};

/// How warmup_stable_decay comes down.
enum class decay_form : std::uint8_t { linear, one_minus_sqrt };

/// The peak until `decay` steps before the end, then down to the floor, reached at step `total` and
/// kept.
///   lr = floor + (peak - floor) * (1 - t) or * (1 - sqrt(t)),
///   t = (step - begin) / (total - begin),
///   begin = total - decay, but not before the end of the warm-up
///   source: Hu et al. 2024 (arXiv 2404.06395) section 4; Haegele et al. 2024 (arXiv 2405.18392)
///   section 3
struct warmup_stable_decay {
    double peak = 1e-3;
    double floor = 0.0;
    std::uint64_t warmup = 0; ///< steps
    std::uint64_t decay = 0;  ///< steps, the last of `total`
    std::uint64_t total = 1;  ///< steps, all three phases
    decay_form form = decay_form::linear;

    [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
        if (step < warmup) return peak * detail::warmup_factor(step, warmup);
        const auto begin = std::max(warmup, total > decay ? total - decay : 0);
        const double t = detail::decay_position(step, begin, total);
        return peak + (floor - peak) * (form == decay_form::linear ? t : std::sqrt(t));
    }
    void describe(description& to) const {
        to.name = "warmup_stable_decay";
        to.add("learning rate", peak).add("warm-up", warmup);
        to.add("lowest learning rate", floor).add("steps of the schedule", total);
        to.add("steps of the decay", decay);
        to.add("form of the decay", form == decay_form::linear ? "linear" : "1-sqrt");
    }
};

/// The rate of a step, from 0. Law: it depends on the step alone, and is equal on all ranks.
/// A schedule with settings may say them, as the ones above do: void describe(description&) const.
template <class S>
concept learning_rate_schedule =
    std::copy_constructible<S> && requires(const S& s, std::uint64_t step) {
        { s(step) } -> std::convertible_to<double>;
    };

/// Any schedule, as a value.
class schedule {
public:
    template <class S>
        requires(!std::same_as<std::remove_cvref_t<S>, schedule>) &&
                learning_rate_schedule<std::remove_cvref_t<S>>
    schedule(S&& how) {
        if constexpr (requires(description& to) { how.describe(to); }) how.describe(said_);
        rate_ = std::forward<S>(how);
    }

    [[nodiscard]] double operator()(std::uint64_t step) const { return rate_(step); }
    /// Its name and settings; of one that does not say them, its rates at some of so many steps.
    [[nodiscard]] description describe(std::uint64_t steps) const;

private:
    std::function<double(std::uint64_t)> rate_;
    description said_;
};

/// The rate of this step (from 0); errc::usage when the schedule gives no number or a negative one.
[[nodiscard]] double learning_rate(const schedule& s, std::uint64_t step);

/// What a command line gives for a schedule.
struct schedule_settings {
    double peak = 1e-3;
    double floor = 0.0;
    std::uint64_t warmup = 0;
    std::uint64_t total = 1;
    double gamma = 0.1;      ///< only "step"
    std::uint64_t every = 0; ///< only "step"; 0 means a third of the steps after the warm-up
    std::uint64_t decay = 0; ///< only "wsd"; 0 means a fifth of the steps after the warm-up
    decay_form form = decay_form::linear; ///< only "wsd"
};

/// The schedule called "constant", "cosine", "linear", "step" or "wsd"; errc::usage for another
/// name or for numbers that make no sense.
[[nodiscard]] result<schedule> make_schedule(std::string_view name, schedule_settings s);

} // namespace skein::train


// ======== skein/train/detail/schedule.ipp
// Bodies of <skein/train/schedule.hpp>.


#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE description schedule::describe(std::uint64_t steps) const {
    if (!said_.name.empty() || !said_.settings.empty()) return said_;
    description by_effect{.name = "callable"};
    constexpr std::uint64_t parts = 8;
    const auto last = steps > 0 ? steps - 1 : 0;
    for (std::uint64_t i = 0, before = 1; i <= parts; ++i) {
        const auto step = last / parts * i + last % parts * i / parts;
        if (i > 0 && step == before) continue;
        by_effect.add(fmt::format("learning rate of step {}", step), rate_(step));
        before = step;
    }
    return by_effect;
}

SKEIN_INLINE double learning_rate(const schedule& s, std::uint64_t step) {
    const double rate = s(step);
    if (rate >= 0.0 && std::isfinite(rate)) return rate;
    throw error(errc::usage, fmt::format("the schedule gives the rate {} at step {}", rate, step))
        .with_hint("a learning rate is a finite number that is not negative");
}

SKEIN_INLINE result<schedule> make_schedule(std::string_view name, schedule_settings s) {
    if (!(s.peak > 0.0) || !std::isfinite(s.peak))
        return error(errc::usage, fmt::format("learning rate {} is not a positive number", s.peak));
    if (!(s.floor >= 0.0) || s.floor > s.peak)
        return error(errc::usage, fmt::format("lowest learning rate {} is not between 0 and the "
                                              "learning rate {}",
                                              s.floor, s.peak));
    if (name == "constant") return schedule(constant_rate{s.peak, s.warmup});
    if (name == "cosine") return schedule(warmup_cosine{s.peak, s.floor, s.warmup, s.total});
    if (name == "linear") return schedule(warmup_linear{s.peak, s.floor, s.warmup, s.total});
    if (name == "step") {
        const auto rest = s.total > s.warmup ? s.total - s.warmup : 1;
        const auto every = s.every != 0 ? s.every : std::max<std::uint64_t>(rest / 3, 1);
        return schedule(step_decay{s.peak, s.gamma, every, s.warmup});
    }
    if (name == "wsd") {
        const auto rest = s.total > s.warmup ? s.total - s.warmup : 1;
        const auto decay = s.decay != 0 ? s.decay : std::max<std::uint64_t>(rest / 5, 1);
        if (s.decay > rest)
            return error(errc::usage, fmt::format("a decay of {} steps does not fit in the {} "
                                                  "steps after the warm-up",
                                                  s.decay, rest))
                .with_hint("the decay is the last part of the run: make it or the warm-up shorter");
        return schedule(warmup_stable_decay{s.peak, s.floor, s.warmup, decay, s.total, s.form});
    }
    return error(errc::usage, fmt::format("unknown schedule '{}'", name))
        .with_hint("one of constant, cosine, linear, step, wsd");
}

} // namespace skein::train

// ======== skein/train/session.hpp
// One training run as steps that a loop of your own drives; fit() is such a loop.
//
// A step has five phases: draw (which samples), compute (forward and backward passes), agree (the
// row: what all ranks report and decide together), apply (clip, optimizer, publish) and commit (the
// place in the data moves on; callbacks, evaluation, files and checkpoints). Until apply nothing
// that lasts has changed, and redo() takes the step back.
//
//     skein::Trainer<skein::DDP<>> trainer(ctx, config);
//     auto session = trainer.open(net, skein::AdamW{}, schedule);
//     session.evaluate_on(net, loss, held_out);
//     for (auto& step : session.steps(data)) {
//         for (auto& micro : step) session.backward(loss(net, micro));
//         session.report(skein::report::metric_kind::sum, "seen", 12);
//     }
//     const auto result = session.finish();


#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::train {

/// Where a session stands between two calls.
enum class step_phase : std::uint8_t {
    idle,      ///< the last step is committed, or taken back
    drawn,     ///< its samples are known
    computing, ///< some micro-batches have been through the model
    /// all ranks know its row; the reduced gradients are there until the next step is drawn
    agreed,
    applied, ///< the parameters are new
};

/// Thrown by a loss function under fit(), on every rank alike: the step is taken back and begins
/// again.
struct redo_step {};

/// What a loss may be: a tensor, or a tensor with its weight.
template <class R>
concept loss_value = std::convertible_to<R, at::Tensor> || std::convertible_to<R, weighted_loss>;

/// loss(model, batch) or loss(model, batch, metric_set&): a scalar tensor, the mean over the
/// batch's samples, or a weighted_loss. The second form may report more numbers; evaluation reports
/// them as "val_<name>".
template <class L, class Model, class Batch>
concept loss_function =
    loss_value<std::invoke_result_t<L&, Model&, const Batch&>> ||
    loss_value<std::invoke_result_t<L&, Model&, const Batch&, report::metric_set&>>;

} // namespace skein::train


// ======== skein/train/detail/session_seam.hpp
// The seam between a session and the user's types: the loop is no template and is compiled once,
// what it needs of strategy, model, loss, data and callbacks is behind virtual calls. Included by
// <skein/train/session.hpp> only, after its concepts.

namespace skein::train {

/// What a session was asked for. Pointers are not owned.
struct session_request {
    context* ctx;
    const run_config* config;
    const report::settings* described; ///< the user's part of config.json
    report::metric_set* reported;      ///< what the user reports for the step that is running
    optimizer_options options;
    schedule rate;
};

} // namespace skein::train

namespace skein::train::detail {

/// State of a callback, by the name of its type.
struct callback_state {
    std::string name, state;
};

/// Strategy, module and callbacks of one session.
class session_parts {
public:
    virtual ~session_parts() = default;
    [[nodiscard]] virtual torch::nn::Module& module() = 0;

    [[nodiscard]] virtual std::string strategy_name() const = 0;
    [[nodiscard]] virtual precision_policy precision() const = 0;
    [[nodiscard]] virtual flat_store& store() = 0;
    virtual void begin_step() = 0;
    virtual void begin_micro(bool last) = 0;
    virtual void finish_backward() = 0;
    [[nodiscard]] virtual double squared_norm(double mine) = 0;
    virtual void publish() = 0;
    virtual void sync_buffers() = 0;
    virtual void begin_evaluation() = 0;
    virtual void end_evaluation() = 0;
    virtual void abort(const error& why) noexcept = 0;
    virtual void finish() = 0;
    virtual void rebind() = 0;

    virtual void tell(const start_info& event) = 0;
    [[nodiscard]] virtual action tell(const step_info& event) = 0;
    [[nodiscard]] virtual action tell(const eval_info& event) = 0;
    virtual void tell(const checkpoint_info& event) = 0;
    virtual void tell(const fit_result& event) = 0;
    /// Why a callback wants the end, as it says; or empty.
    [[nodiscard]] virtual std::string stop_reason() const = 0;
    [[nodiscard]] virtual std::vector<callback_state> states() const = 0;
    virtual void restore(const callback_state& saved) = 0;
};

using make_parts = std::function<std::unique_ptr<session_parts>()>;
/// The loss of a batch behind the pointer; `metrics` gets what it reports. Its weight is undefined
/// when it is the mean over the samples.
using batch_loss = std::function<weighted_loss(const void* batch, report::metric_set& metrics)>;
/// The same of samples by number.
using numbered_loss =
    std::function<weighted_loss(std::span<const std::uint64_t>, report::metric_set& metrics)>;

template <class Loss, class Model, class Batch>
consteval void require_loss() {
    static_assert(
        loss_function<Loss, Model, Batch>,
        "the loss must be callable as loss(model, batch) or loss(model, batch, metric_set&) "
        "and return a scalar tensor or a skein::weighted_loss");
}

template <class Loss, class Model, class Batch>
inline constexpr bool loss_reports =
    std::invocable<Loss&, Model&, const Batch&, report::metric_set&>;

template <class Loss, class Model, class Batch>
[[nodiscard]] consteval bool loss_is_weighted() {
    if constexpr (loss_reports<Loss, Model, Batch>)
        return std::convertible_to<
            std::invoke_result_t<Loss&, Model&, const Batch&, report::metric_set&>, weighted_loss>;
    else
        return std::convertible_to<std::invoke_result_t<Loss&, Model&, const Batch&>,
                                   weighted_loss>;
}

template <class Loss, class Model, class Batch>
[[nodiscard]] weighted_loss call_loss(Loss& loss, Model& model, const Batch& batch,
                                      report::metric_set& metrics) {
    const auto value = [&] {
        if constexpr (loss_reports<Loss, Model, Batch>)
            return loss(model, batch, metrics);
        else
            return loss(model, batch);
    };
    if constexpr (loss_is_weighted<Loss, Model, Batch>())
        return value();
    else
        return {value(), {}};
}

/// Names of the trainer's own numbers, in rows or beside them.
inline constexpr std::string_view taken_names[] = {
    "loss",          "lr",           "grad_norm",  "step",      "stop",        "tokens_per_s",
    "samples_per_s", "step_seconds", "event",      "val_loss",  "total",       "eta_seconds",
    "data_s",        "forward_s",    "backward_s", "exposed_s", "optimizer_s", "overlap",
    "loss_scale"};

class session_core;

/// What a person should know who wants the best checkpoints kept; mostly nothing.
[[nodiscard]] std::string cadence_notice(const run_config& config, std::uint64_t held_out);

/// Checks the configuration and sets this process up for computing.
void begin_training(const context& ctx, const run_config& config);

} // namespace skein::train::detail


// ======== skein/train/session.hpp, continued
namespace skein::train {

class session;

/// The step that is drawn: its micro-batches of this rank, each to be given to session::backward().
template <class Batch>
class step_view {
public:
    class iterator {
    public:
        using value_type = Batch;
        using difference_type = std::ptrdiff_t;
        const Batch& operator*() const { return *static_cast<const Batch*>(batch_); }
        iterator& operator++();
        void operator++(int) { ++*this; }
        friend bool operator==(const iterator& it, std::default_sentinel_t) {
            return it.batch_ == nullptr;
        }

    private:
        friend class step_view;
        explicit iterator(session& of);
        session* of_;
        const void* batch_;
    };

    explicit step_view(session& of) : of_(&of) {}
    [[nodiscard]] iterator begin() { return iterator(*of_); }
    [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

    [[nodiscard]] std::uint64_t number() const; ///< from 1
    [[nodiscard]] double loss() const;          ///< so far, of this rank

private:
    session* of_;
};

/// Steps to the end of the run. Leaving one agrees, applies and commits it; after redo() it comes
/// again.
template <class Batch>
class step_range {
public:
    class iterator {
    public:
        using value_type = step_view<Batch>;
        using difference_type = std::ptrdiff_t;
        step_view<Batch>& operator*() const { return range_->view_; }
        iterator& operator++();
        void operator++(int) { ++*this; }
        friend bool operator==(const iterator& it, std::default_sentinel_t) { return it.at_end(); }

    private:
        friend class step_range;
        [[nodiscard]] bool at_end() const { return !range_->more_; }
        explicit iterator(step_range& range) : range_(&range) {}
        step_range* range_;
    };

    explicit step_range(session& of) : of_(&of), view_(of) {}
    [[nodiscard]] iterator begin();
    [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

private:
    session* of_;
    step_view<Batch> view_;
    bool more_ = false;
};

/// A run: made by Trainer::open(), which must outlive it, as must model and data. All ranks make
/// the same calls. An error that leaves a member is told to the other ranks; one that passes the
/// session by ends their next exchange with them knowing that this rank has left because of an
/// exception.
class session {
public:
    /// Makes the strategy. Throws errc::mismatch when the ranks' settings differ, and what it
    /// throws.
    session(const session_request& request, const detail::make_parts& make);
    session(const session&) = delete;
    session& operator=(const session&) = delete;
    ~session();

    /// Before the first step: evaluates as run_config says. Model, loss and data must outlive the
    /// session.
    template <class Model, class Loss, data_source HeldOut>
    void evaluate_on(Model& model, Loss& loss, const HeldOut& held_out) {
        detail::require_loss<Loss, Model, batch_of<HeldOut>>();
        use_evaluation(static_cast<std::uint64_t>(held_out.size()),
                       [&](std::span<const std::uint64_t> ids, report::metric_set& metrics) {
                           return detail::call_loss(loss, model, held_out.batch(ids), metrics);
                       });
    }
    /// Before the first step, on every rank: backward() gets weighted losses.
    void expect_weights() noexcept;

    /// The steps that are left, for a range-based for. Resumes first, if that is asked for. Once.
    template <class Data>
        requires train_input<Data>
    [[nodiscard]] step_range<batch_of<Data>> steps(Data& data) {
        begin(detail::make_input(data));
        return step_range<batch_of<Data>>(*this);
    }

    /// The backward pass of the micro-batch in hand. The gradient is that of the mean over the
    /// global batch, however its samples fall on ranks and micro-batches.
    ///   mean  over the micro-batch's samples, one number
    void backward(const at::Tensor& mean) { backward(weighted_loss{mean, {}}); }
    void backward(const weighted_loss& loss);

    /// A number of this rank for the row of this step; see Trainer::report().
    void report(report::metric_kind kind, std::string_view name, double value,
                std::optional<double> weight = {});
    /// Training ends after the step that agrees on it next, on all ranks.
    void request_stop() noexcept;

    // ---- the phases one by one; steps() calls those that a loop leaves out ----------------------

    void begin(std::unique_ptr<detail::input_source> input);
    /// False: the run is at its end, or was asked to stop.
    [[nodiscard]] bool draw();
    /// The next micro-batch of this rank, a Batch of the data; null after the last.
    [[nodiscard]] const void* next_micro();
    void agree();
    void apply();
    void commit();
    /// What is left of the step. Nothing after redo().
    void complete();
    /// Takes back a step that is not applied: the next draw() gives the same samples, and the step
    /// has the same bits as if it had run once: generators, the model's buffers and reported
    /// numbers included. Collective when the backward pass has begun: its exchanges come to an end
    /// first.
    void redo();

    /// Fails every exchange of the session, here and at the peers, with this reason: so that all
    /// ranks leave for another generation, or end. From the session's thread; another one calls
    /// ctx.comm()->abort().
    void abort(const error& why) noexcept;
    /// After context::rebind(), on every rank of the new generation: goes on with its groups. A
    /// step that is not applied is given up, without the ranks of before, and drawn again by the
    /// ranks of now; one that is applied everywhere wants its commit(); an evaluation or checkpoint
    /// that broke is made here. With steps() in a loop: leave it, rebind, and begin the same range
    /// anew.
    ///   errors  mismatch when some ranks have applied a step and others have not; not_supported
    ///           for ranks that were not there from the beginning, and when a shard or a place in a
    ///           stream is lost: all are told, and a run resumes from its last checkpoint
    void rebind();

    [[nodiscard]] step_phase phase() const noexcept;
    [[nodiscard]] std::uint64_t finished() const noexcept; ///< steps
    [[nodiscard]] double micro_loss() const noexcept; ///< mean of the step so far, of this rank

    /// The last evaluation, files, callbacks. The module is whole again on every rank. A step that
    /// is not committed is given up.
    [[nodiscard]] fit_result finish();

    /// All steps with a loss that is called here: fit().
    [[nodiscard]] fit_result run(const detail::batch_loss& loss);
    void use_evaluation(std::uint64_t samples, detail::numbered_loss loss);

private:
    std::unique_ptr<detail::session_core> core_;
};

template <class Batch>
step_view<Batch>::iterator::iterator(session& of) : of_(&of), batch_(of.next_micro()) {}
template <class Batch>
typename step_view<Batch>::iterator& step_view<Batch>::iterator::operator++() {
    batch_ = of_->next_micro();
    return *this;
}
template <class Batch>
std::uint64_t step_view<Batch>::number() const {
    return of_->finished() + 1;
}
template <class Batch>
double step_view<Batch>::loss() const {
    return of_->micro_loss();
}
template <class Batch>
typename step_range<Batch>::iterator step_range<Batch>::begin() {
    if (of_->phase() == step_phase::applied) of_->commit(); // applied before a rebind()
    more_ = of_->draw();
    return iterator(*this);
}
template <class Batch>
typename step_range<Batch>::iterator& step_range<Batch>::iterator::operator++() {
    range_->of_->complete();
    range_->more_ = range_->of_->draw();
    return *this;
}

} // namespace skein::train


// ======== skein/train/detail/session.ipp
// Bodies of <skein/train/session.hpp>.


// ======== skein/train/detail/session_core.ipp
// The steps of one run: draw, compute, agree, apply, commit. What lies between them is in
// detail/session_between.ipp. Used by <skein/train/detail/session.ipp> alone.


// ======== skein/train/detail/feeder.ipp
// The batches of one session in order: deals, makes them ahead, and goes back to the last committed
// place. Used by <skein/train/detail/session_core.ipp> alone.


// ======== skein/train/training_state.hpp
// Everything a run needs to go on as if it had never stopped, to and from a checkpoint.
//
// Tensors are saved under the module's own names ("model.wte", "optim.exp_avg.wte"), not as flat
// buffers, and a rank of a sharded run saves the rows it owns: any strategy with any number of
// workers, and any other reader of safetensors, can load them. The rest is a small JSON object:
// sampler position, optimizer steps, seed. Dropout needs no saved state: every micro-batch seeds
// the generator with (seed, step, its number in the global batch).


#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace skein::train {

/// The name of a tensor's type in the safetensors format; errc::not_supported for an exotic one.
[[nodiscard]] std::string safetensors_dtype(const at::Tensor& tensor);

/// The bytes of a contiguous CPU tensor.
[[nodiscard]] mut_byte_span bytes_of(const at::Tensor& tensor);

/// Seeds this process's default generator for one micro-batch, numbered over all ranks of a step. N
/// ranks so draw what one process draws with N micro-batches per step.
void seed_step(std::uint64_t seed, std::uint64_t step, int micro_batch);

/// The parts of a run that a checkpoint covers; refers to objects of the trainer.
class training_state {
public:
    training_state(flat_store& store, flat_optimizer& optimizer, sampler& order)
        : training_state(store, optimizer, &order) {}
    ///   order  null: the data is a stream, whose place is in what `extra` of save() says
    training_state(flat_store& store, flat_optimizer& optimizer, sampler* order)
        : store_(&store), optimizer_(&optimizer), order_(order) {}

    /// Tells a model or optimizer with other tensors.
    [[nodiscard]] std::string config_hash() const;

    /// What to save after `step` finished steps. The views stay valid until the next step.
    ///   more   numbers that go into checkpoint_state::extra besides its own
    ///   extra  likewise: the text of a JSON object
    [[nodiscard]] checkpoint_state save(std::uint64_t step, std::uint64_t seed,
                                        const std::map<std::string, double>& more = {},
                                        const std::string& extra = "{}");

    /// Takes over what this rank owns; strategy::publish() gives it to the others. Throws
    /// errc::mismatch, naming what differs, before it changes anything that a shape check can find.
    void restore(const loaded_checkpoint& from);

private:
    /// A tensor of the module or the optimizer, and the rows of it that this rank owns.
    struct owned_tensor {
        std::string name;
        std::vector<std::int64_t> shape; ///< of the whole
        at::Tensor rows;                 ///< flat, or of the whole shape
        std::int64_t first_row = 0, count = 0;
        bool everywhere = true;
    };

    void restore_place(const loaded_checkpoint& from);
    void restore_left_out(const std::string& text);
    /// Every tensor to save, in one order on all ranks.
    [[nodiscard]] std::vector<owned_tensor> tensors() const;

    flat_store* store_;
    flat_optimizer* optimizer_;
    sampler* order_;
    std::vector<at::Tensor> held_;
};

} // namespace skein::train


// ======== skein/train/detail/training_state.ipp
// Bodies of <skein/train/training_state.hpp>.


#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE std::string safetensors_dtype(const at::Tensor& tensor) {
    switch (tensor.scalar_type()) {
    case at::kFloat: return "F32";
    case at::kDouble: return "F64";
    case at::kBFloat16: return "BF16";
    case at::kHalf: return "F16";
    case at::kLong: return "I64";
    case at::kInt: return "I32";
    case at::kShort: return "I16";
    case at::kChar: return "I8";
    case at::kByte: return "U8";
    case at::kBool: return "BOOL";
    default:
        throw error(errc::not_supported, fmt::format("not supported: a checkpoint of type {}",
                                                     c10::toString(tensor.scalar_type())));
    }
}

SKEIN_INLINE mut_byte_span bytes_of(const at::Tensor& tensor) {
    SKEIN_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(),
                "needs a contiguous CPU tensor");
    return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

SKEIN_INLINE void seed_step(std::uint64_t seed, std::uint64_t step, int micro_batch) {
    std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + step * 0xbf58476d1ce4e5b9ULL +
                      static_cast<std::uint64_t>(micro_batch) + 1; // splitmix64 of the three
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    torch::manual_seed(x ^ (x >> 31));
}

namespace detail {
SKEIN_INLINE error missing_extra(const loaded_checkpoint& from, const char* what) {
    return error(errc::malformed, fmt::format("the checkpoint has no '{}'", what))
        .with_where(from.path());
}
} // namespace detail

SKEIN_INLINE std::string training_state::config_hash() const {
    return fmt::format("{:016x}-{}", store_->layout_hash(), optimizer_->name());
}

SKEIN_INLINE checkpoint_state training_state::save(std::uint64_t step, std::uint64_t seed,
                                                   const std::map<std::string, double>& more,
                                                   const std::string& also) {
    checkpoint_state state;
    state.step = step;
    state.config_hash = config_hash();
    held_.clear();
    for (auto& t : tensors()) {
        held_.push_back(t.rows.contiguous());
        const bool writes = t.everywhere || !store_->is_saved_elsewhere();
        state.tensors.push_back({.name = std::move(t.name),
                                 .dtype = safetensors_dtype(t.rows),
                                 .shape = std::move(t.shape),
                                 .bytes = writes ? bytes_of(held_.back()) : mut_byte_span{},
                                 .first_row = writes ? t.first_row : 0,
                                 .rows = t.everywhere ? tensor_part::whole
                                         : writes     ? t.count
                                                      : 0,
                                 .everywhere = t.everywhere});
    }
    json extra = parse_json(also, {.max_bytes = 256u << 20, .max_depth = 64}).value();
    if (order_ != nullptr) {
        const auto& at = order_->state();
        extra["sampler"] = {{"seed", at.seed},
                            {"epoch", at.epoch},
                            {"cursor", at.cursor},
                            {"samples", order_->options().samples},
                            {"batch", order_->options().batch}};
    }
    extra["optimizer"] = {{"name", optimizer_->name()}, {"steps", optimizer_->steps()}};
    const auto& left_out = optimizer_->left_out();
    for (std::size_t i = 0; i < left_out.size(); ++i)
        if (left_out[i] != 0)
            extra["optimizer"]["left_out"][store_->segments()[i].name] = left_out[i];
    extra["seed"] = seed;
    for (const auto& [name, value] : more) extra[name] = value;
    state.extra = dump_json(extra);
    return state;
}

SKEIN_INLINE void training_state::restore(const loaded_checkpoint& from) {
    at::NoGradGuard no_grad;
    if (from.manifest().config_hash != config_hash())
        throw error(errc::mismatch, "the checkpoint is of another model or optimizer")
            .with_where(from.path())
            .with_hint("give the same model and optimizer options as when the run was started, or "
                       "another run name");
    const json extra = parse_json(from.extra(), {.max_bytes = 256u << 20, .max_depth = 64}).value();
    const auto number = [&](const char* group, const char* key) {
        if (!extra.contains(group)) throw detail::missing_extra(from, group);
        return json_uint(extra.at(group), key).value();
    };
    restore_place(from);
    optimizer_->set_steps(number("optimizer", "steps"));
    restore_left_out(extra.at("optimizer").value("left_out", json::object()).dump());
    bool has_average = true;
    for (auto& t : tensors()) {
        if (t.name.starts_with("optim.ema.") && !from.contains(t.name)) { // it had none until now
            has_average = false;
            continue;
        }
        auto rows = t.rows.contiguous();
        from.read(t.name, safetensors_dtype(rows), t.shape, t.first_row, t.count, bytes_of(rows));
        if (rows.data_ptr() != t.rows.data_ptr()) t.rows.copy_(rows);
    }
    store_->cast_fixed();
    if (!has_average) optimizer_->average()->restart();
}

SKEIN_INLINE void training_state::restore_place(const loaded_checkpoint& from) {
    const json extra = parse_json(from.extra(), {.max_bytes = 256u << 20, .max_depth = 64}).value();
    const auto refuse = [&](std::string what, const char* same) {
        throw error(errc::mismatch, std::move(what))
            .with_where(from.path())
            .with_hint(fmt::format("give the same {} as when the run was started, or another run "
                                   "name",
                                   same));
    };
    const bool of_stream = extra.contains("stream");
    if (of_stream != (order_ == nullptr))
        refuse(of_stream ? "the run was started on a stream, now its data has a size"
                         : "the run was started on data of a size, now it is a stream",
               "data");
    if (order_ == nullptr) return;
    if (!extra.contains("sampler")) throw detail::missing_extra(from, "sampler");
    const auto number = [&](const char* key) {
        return json_uint(extra.at("sampler"), key).value();
    };
    const auto& now = order_->options();
    if (number("samples") != now.samples)
        refuse(fmt::format("the run was started on {} samples, now there are {}", number("samples"),
                           now.samples),
               "data");
    if (number("seed") != now.seed)
        refuse(
            fmt::format("the run was started with seed {}, now it is {}", number("seed"), now.seed),
            "seed");
    order_->restore({number("seed"), number("epoch"), number("cursor")});
}

SKEIN_INLINE void training_state::restore_left_out(const std::string& text) {
    const json saved = parse_json(text).value();
    std::vector<std::uint64_t> left_out;
    for (const auto& s : store_->segments())
        left_out.push_back(saved.contains(s.name) ? json_uint(saved, s.name).value() : 0);
    optimizer_->set_left_out(std::move(left_out));
}

SKEIN_INLINE std::vector<training_state::owned_tensor> training_state::tensors() const {
    const auto rows_of = [](std::span<const std::int64_t> shape) {
        return shape.empty() ? std::int64_t{1} : shape[0];
    };
    std::vector<const owned_piece*> mine(store_->segments().size(), nullptr);
    for (const auto& piece : store_->pieces()) mine[piece.segment] = &piece;
    std::vector<owned_tensor> all;
    for (std::size_t i = 0; i < mine.size(); ++i) {
        const auto& s = store_->segments()[i];
        const auto add = [&](std::string name, const at::Tensor& flat, std::int64_t at) {
            owned_tensor t{.name = std::move(name), .shape = s.shape, .rows = flat.narrow(0, 0, 0)};
            t.everywhere = !store_->is_sharded() || s.count == 0;
            if (mine[i] != nullptr) {
                t.rows = flat.narrow(0, at, mine[i]->count);
                t.first_row = mine[i]->first / s.row;
                t.count = mine[i]->count / s.row;
            } else if (t.everywhere) {
                t.count = rows_of(t.shape); // of no elements
            }
            all.push_back(std::move(t));
        };
        const auto* piece = mine[i];
        add("model." + s.name, store_->params_P(), piece != nullptr ? piece->flat : 0);
        for (const auto& [state, flat] : optimizer_->states())
            add("optim." + state + "." + s.name, flat, piece != nullptr ? piece->at : 0);
    }
    for (const auto& f : store_->fixed()) {
        auto tensor = f.tensor.detach();
        auto shape = tensor.sizes().vec();
        const auto rows = rows_of(shape);
        all.push_back({"model." + f.name, std::move(shape), std::move(tensor), 0, rows, true});
    }
    return all;
}

} // namespace skein::train


// ======== skein/train/detail/feeder.ipp, continued
#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// One micro-batch of this rank. Without samples it is left out of the step.
struct micro_batch {
    std::uint64_t samples = 0;
    std::vector<std::uint64_t> ids;    ///< of numbered data
    std::shared_ptr<const void> value; ///< null: not made yet, or done with
    std::exception_ptr failed;         ///< what the user's code threw instead
};

/// One global batch as this rank sees it.
struct drawn_batch {
    std::uint64_t epoch = 0, global_batch = 0;
    std::vector<micro_batch> micros;
    sampler_state place;     ///< behind it
    std::string stream;      ///< the stream's state behind it
    bool ends_epoch = false; ///< of a stream

    [[nodiscard]] std::size_t with_samples() const {
        return static_cast<std::size_t>(
            std::ranges::count_if(micros, [](const micro_batch& m) { return m.samples > 0; }));
    }
};

class feeder {
public:
    feeder(const context& ctx, const run_config& config, input_source& source)
        : ctx_(ctx), config_(config), source_(source), rank_(ctx.rank()),
          world_size_(ctx.world_size()) {
        if (!source_.is_stream()) {
            order_.emplace(order_options(), world_size_);
            ahead_ = order_;
            total_ = total_steps(config, source_.size());
        } else {
            if (config.last == last_batch::carry)
                throw error(errc::usage, "a stream cannot carry samples over into its next epoch")
                    .with_hint("choose last_batch::drop or last_batch::shorten");
            if (config.epochs == 0)
                total_ = static_cast<std::uint64_t>(config.max_steps);
            else if (source_.size() > 0)
                total_ = total_steps(config, source_.size());
            state_ = source_.state();
        }
        depth_ = source_.reads_ahead() ? 0 : static_cast<std::size_t>(config.prefetch_batches);
    }
    feeder(const feeder&) = delete;
    feeder& operator=(const feeder&) = delete;
    ~feeder() { drop_ahead(); }

    /// Steps of the run; 0: as many as the stream gives.
    [[nodiscard]] std::uint64_t total() const noexcept { return total_; }
    /// Null with a stream.
    [[nodiscard]] sampler* order() noexcept { return order_ ? &*order_ : nullptr; }

    /// The batch of the step after so many finished ones; nothing when the epochs are over.
    /// Collective with a stream.
    [[nodiscard]] std::optional<drawn_batch> next(std::uint64_t step) {
        return order_ ? next_by_number(step) : next_of_stream(step);
    }

    /// Of a batch that next() gave: makes it, if nobody has. Throws what the user's code threw.
    [[nodiscard]] const void* batch_of(micro_batch& micro) {
        if (micro.failed) std::rethrow_exception(std::exchange(micro.failed, nullptr));
        if (!micro.value) {
            watched([&] { micro.value = source_.batch(micro.ids); });
            watched_ = true;
        }
        return micro.value.get();
    }

    /// Starts what may be made ahead of the step after so many finished ones.
    void look_ahead(std::uint64_t step) {
        if (depth_ == 0 || !watched_ || begins_anew_) return;
        while (ahead_of_.size() < depth_ && (total_ == 0 || step + 1 + ahead_of_.size() < total_)) {
            auto job = std::make_unique<pending>();
            if (order_) job->batch = deal();
            job->epoch = epoch_;
            job->step = step + 1 + ahead_of_.size();
            auto& now = *job;
            now.end = now.done.get_future();
            if (!worker_) worker_.emplace(1);
            worker_->submit([this, &now] {
                make_ahead(now);
                now.done.set_value();
            });
            ahead_of_.push_back(std::move(job));
        }
    }
    /// Waits until the data is left alone.
    void quiet() {
        for (auto& job : ahead_of_) job->end.wait();
    }

    void commit(const drawn_batch& taken) {
        if (order_) return order_->restore(taken.place);
        state_ = taken.stream;
        committed_epoch_ = taken.epoch + (taken.ends_epoch ? 1 : 0);
    }

    /// The next batch is again the one after the last committed.
    void rewind() {
        drop_ahead();
        if (order_) {
            ahead_->restore(order_->state());
        } else {
            source_.restore(state_);
            epoch_ = committed_epoch_;
            begins_anew_ = false;
        }
    }

    /// The world is another one: from the committed place on its ranks get their shares. Collective
    /// with a stream.
    void rebind() {
        if (order_)
            sampler::check(order_options(), ctx_.world_size()).value();
        else
            require_places();
        rank_ = ctx_.rank();
        world_size_ = ctx_.world_size();
        rewind();
    }

    /// For the checkpoint of a stream; collective.
    [[nodiscard]] json saved_stream() const {
        json states = json::array();
        for (const auto& state : gather_bytes(ctx_, as_bytes(std::string_view(state_))))
            states.push_back(to_hex(state));
        return {{"epoch", committed_epoch_},
                {"data", source_.describe()},
                {"states", std::move(states)}};
    }
    void restore_stream(const json& saved, const std::string& where) {
        if (const auto data = saved.value("data", ""); !data.empty() && data != source_.describe())
            throw error(errc::mismatch, fmt::format("the checkpoint is of other data: {}, now {}",
                                                    data, source_.describe()))
                .with_where(where)
                .with_hint("go on with the data that the run was started with, or start anew");
        const auto& states = saved.at("states");
        const auto mine = static_cast<std::size_t>(ctx_.rank());
        bool alike = true;
        for (const auto& s : states) alike = alike && s == states[0];
        if (states.empty() || (!alike && states.size() != std::size_t(ctx_.world_size())))
            throw error(errc::mismatch,
                        fmt::format("the streams of {} ranks were saved, now there are {}",
                                    states.size(), ctx_.world_size()))
                .with_where(where)
                .with_hint("resume with as many workers as before, or save one state for all: the "
                           "place in the whole stream");
        const auto text = states[alike ? 0 : mine].get<std::string>();
        byte_buffer bytes(text.size() / 2);
        if (!from_hex(text, bytes))
            throw error(errc::malformed, "the state of a stream is no hexadecimal text")
                .with_where(where);
        state_ = std::string(as_text(bytes));
        committed_epoch_ = json_uint(saved, "epoch").value();
        fresh_ = false;
        rewind();
    }

private:
    /// Made on the worker.
    struct pending {
        drawn_batch batch;
        std::uint64_t epoch = 0, step = 0;
        std::promise<void> done;
        std::future<void> end;
    };

    [[nodiscard]] sampler_options order_options() const {
        return {.samples = source_.size(),
                .batch = static_cast<std::uint64_t>(config_.global_batch),
                .seed = config_.seed,
                .last = config_.last};
    }

    /// Every rank reads on where it was, or all are at one place of the whole stream.
    void require_places() const {
        const bool same = rank_ == ctx_.rank() && world_size_ == ctx_.world_size();
        const auto all = gather_bytes(ctx_, as_bytes((same ? "same " : "moved ") + state_));
        bool alike = true, moved = false;
        for (const auto& each : all) {
            const auto text = as_text(each), first = as_text(all[0]);
            alike = alike && text.substr(text.find(' ')) == first.substr(first.find(' '));
            moved = moved || !text.starts_with("same ");
        }
        if (alike || !moved) return;
        throw error(errc::not_supported,
                    fmt::format("not supported: the streams of {} ranks go on with {}", world_size_,
                                ctx_.world_size()))
            .with_hint("give streams one state for all: the place in the whole stream");
    }

    [[nodiscard]] int parts() const noexcept { return static_cast<int>(config_.accumulation); }

    /// The next places of the order, cut into micro-batches.
    [[nodiscard]] drawn_batch deal() {
        auto slice = ahead_->next(rank_, world_size_);
        drawn_batch out;
        out.epoch = slice.epoch;
        out.global_batch = slice.global_batch;
        for (int part = 0; part < parts(); ++part) {
            const auto [first, last] = rank_range(slice.ids.size(), part, parts());
            micro_batch micro;
            micro.samples = last - first;
            micro.ids.assign(slice.ids.begin() + static_cast<std::ptrdiff_t>(first),
                             slice.ids.begin() + static_cast<std::ptrdiff_t>(last));
            out.micros.push_back(std::move(micro));
        }
        out.place = ahead_->state();
        return out;
    }

    [[nodiscard]] std::optional<drawn_batch> next_by_number(std::uint64_t step) {
        if (step >= total_) return std::nullopt;
        auto job = take();
        return job ? std::move(job->batch) : deal();
    }

    /// What was made ahead, when it is there or comes.
    [[nodiscard]] std::unique_ptr<pending> take() {
        if (ahead_of_.empty()) return nullptr;
        ahead_of_.front()->end.wait();
        auto job = std::move(ahead_of_.front());
        ahead_of_.pop_front();
        return job;
    }

    void make_ahead(pending& job) noexcept {
        if (!order_) return ask(job.batch, job.epoch, std::nullopt);
        for (auto& micro : job.batch.micros) {
            if (micro.ids.empty()) continue;
            try {
                micro.value = source_.batch(micro.ids);
            } catch (...) {
                micro.failed = std::current_exception();
            }
        }
    }

    /// This rank's share from the stream; an error becomes that of the micro-batch it belongs to.
    ///   step  seeds the generator, where that is allowed
    void ask(drawn_batch& out, std::uint64_t epoch, std::optional<std::uint64_t> step) noexcept {
        const auto [first, last] =
            rank_range(static_cast<std::uint64_t>(config_.global_batch), rank_, world_size_);
        out.epoch = epoch;
        for (int part = 0; part < parts(); ++part) {
            const auto [from, to] = rank_range(last - first, part, parts());
            const stream_share share{.rank = rank_,
                                     .world_size = world_size_,
                                     .samples = to - from,
                                     .begin = first + from,
                                     .global_batch =
                                         static_cast<std::uint64_t>(config_.global_batch),
                                     .is_last = part + 1 == parts(),
                                     .epoch = epoch};
            micro_batch micro;
            try {
                if (step) seed_step(~config_.seed, *step, rank_ * parts() + part);
                decltype(source_.next(share)) got;
                const auto get = [&] { got = source_.next(share); };
                step ? watched(get) : get();
                out.stream = source_.state();
                micro.samples = got.value ? got.samples : 0;
                out.ends_epoch = !got.value;
                micro.value = std::move(got.value);
            } catch (...) {
                micro.failed = std::current_exception();
                micro.samples = 1; // it shows when it is asked for
            }
            out.micros.push_back(std::move(micro));
            if (out.ends_epoch || out.micros.back().failed) break;
        }
    }

    /// Ranks may end at different places: what they do is agreed before anybody computes.
    [[nodiscard]] std::optional<drawn_batch> next_of_stream(std::uint64_t step) {
        if (total_ > 0 && step >= total_) return std::nullopt;
        if (std::exchange(begins_anew_, false)) restart();
        for (;;) {
            if (config_.epochs > 0 && epoch_ >= static_cast<std::uint64_t>(config_.epochs))
                return std::nullopt;
            auto batch = one_share(step);
            double seen[] = {0.0, batch.ends_epoch ? 1.0 : 0.0};
            for (const auto& micro : batch.micros) seen[0] += static_cast<double>(micro.samples);
            all_reduce(ctx_, seen, dist::reduce_op::sum);
            batch.global_batch = static_cast<std::uint64_t>(seen[0]);
            batch.ends_epoch = seen[1] > 0;
            const bool whole = !batch.ends_epoch || config_.last == last_batch::shorten;
            if (whole && batch.global_batch > 0) {
                fresh_ = false;
                if (batch.ends_epoch) {
                    epoch_ += 1;
                    begins_anew_ = true;
                }
                return batch;
            }
            if (!batch.ends_epoch) continue; // filters left nothing of it: no step
            if (fresh_)
                throw error(errc::usage,
                            fmt::format("epoch {} of the stream does not fill one global batch of "
                                        "{} samples",
                                        epoch_, config_.global_batch))
                    .with_hint("use a smaller batch, last_batch::shorten, more data or a filter "
                               "that keeps more");
            epoch_ += 1;
            fresh_ = true;
            restart();
        }
    }

    /// From the committed place, so that it does not matter how much was made ahead.
    void restart() {
        drop_ahead();
        source_.restore(state_);
    }

    [[nodiscard]] drawn_batch one_share(std::uint64_t step) {
        if (auto job = take()) return std::move(job->batch);
        drawn_batch batch;
        ask(batch, epoch_, step);
        watched_ = true;
        return batch;
    }

    /// Runs the user's code here. The first time it is looked whether it draws from torch's
    /// generator: on another thread it would take the model's numbers.
    template <class Call>
    void watched(Call call) {
        if (depth_ == 0 || watched_) return call();
        const auto before = generator_state();
        call();
        if (!at::equal(before, generator_state())) depth_ = 0;
    }

    [[nodiscard]] static at::Tensor generator_state() {
        auto generator = at::detail::getDefaultCPUGenerator();
        const std::lock_guard lock(generator.mutex());
        return generator.get_state();
    }

    void drop_ahead() {
        quiet();
        ahead_of_.clear();
    }

    const context& ctx_;
    const run_config& config_;
    input_source& source_;
    int rank_, world_size_;                // as the shares are dealt, on the worker too
    std::optional<sampler> order_, ahead_; // committed, and behind all that was dealt
    std::uint64_t total_ = 0;
    std::size_t depth_ = 0;
    bool watched_ = false; // the user's code has run once

    std::string state_;                             // of the stream, committed
    std::uint64_t committed_epoch_ = 0, epoch_ = 0; // of the stream; the second: of the next batch
    bool begins_anew_ = false;                      // the stream, before it is asked again
    bool fresh_ = true;                             // nothing was taken in this epoch

    std::deque<std::unique_ptr<pending>> ahead_of_;
    std::optional<net::offload_pool> worker_; // last: it ends before what it works on
};

} // namespace skein::train::detail

// ======== skein/train/detail/session_between.ipp
// What lies between the steps of a run: evaluation, files, checkpoints, and how it begins and ends.
// Used by <skein/train/detail/session_core.ipp> alone.


// ======== skein/train/detail/session_evaluation.ipp
// Evaluations of one session. Used by <skein/train/detail/session_core.ipp> alone.


// ======== skein/train/detail/session_parts.ipp
// Parts of one fit() beside its loop: clocks, what the ranks must have alike, the user's code and
// modes. Used by <skein/train/detail/session_core.ipp> alone.


#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <system_error>
#include <typeinfo>
#include <utility>
#include <vector>

#include <cxxabi.h>
#include <sys/resource.h>

#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE double seconds_now() { return to_seconds(system_clock().now().time_since_epoch()); }

/// The largest resident size of this process so far.
SKEIN_INLINE double peak_rss_bytes() {
    struct rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) * 1024.0;
}

// ---- what all ranks must have alike -------------------------------------------------------------

SKEIN_INLINE void add_settings(std::vector<spmd::setting>& to, const char* what,
                               const description& of) {
    to.push_back({what, of.name});
    for (const auto& [name, value] : of.settings) to.push_back({name, value});
}

/// Ranks that differ in one of these would train apart, or wait for each other for ever.
SKEIN_INLINE std::vector<spmd::setting> all_settings(const session_request& request) {
    auto all = settings_of(*request.config);
    const auto steps = static_cast<std::uint64_t>(request.config->max_steps);
    add_settings(all, "optimizer", describe(request.options));
    add_settings(all, "schedule", request.rate.describe(steps));
    return all;
}

/// The user's settings for config.json, below those of the optimizer and the schedule.
SKEIN_INLINE report::settings described_settings(const session_request& request) {
    report::settings all;
    const auto add = [&](const char* what, const description& of) {
        all.set(what, of.name);
        for (const auto& [name, value] : of.settings)
            all.set(fmt::format("{}: {}", what, name), value);
    };
    add("optimizer", describe(request.options));
    add("schedule", request.rate.describe(static_cast<std::uint64_t>(request.config->max_steps)));
    all.append(*request.described);
    return all;
}

/// The same for the data.
SKEIN_INLINE std::vector<spmd::setting> data_settings(const input_source& input,
                                                      std::uint64_t held_out) {
    return {{"samples",
             input.is_stream() && input.size() == 0 ? "a stream" : fmt::format("{}", input.size())},
            {"data", input.describe()},
            {"evaluation samples", fmt::format("{}", held_out)}};
}

SKEIN_INLINE std::string epochs_text(const run_config& c, const input_source& input) {
    if (c.epochs < 1) return {};
    const char* const lasts[] = {"left out", "a short batch", "carried over"};
    auto text = fmt::format("{} epoch{}", c.epochs, c.epochs == 1 ? "" : "s");
    if (input.size() > 0) {
        const auto batch = static_cast<std::uint64_t>(c.global_batch);
        text += fmt::format(" of {} samples", input.size());
        if (const auto rest = input.size() % batch; rest > 0)
            text += fmt::format(", the last {} of each {}", rest, lasts[static_cast<int>(c.last)]);
    }
    return text;
}

/// The norm of the summed gradients has the same bits on every rank, or the replicas differ.
[[noreturn]] SKEIN_INLINE void come_apart(std::uint64_t step, double least, double most) {
    throw error(errc::mismatch,
                fmt::format("the ranks have come apart at step {}: the gradient norm is {:.17g} "
                            "on one and {:.17g} on another",
                            step, least, most))
        .with_hint("do all hosts have the same kind of processor and the same libraries, and does "
                   "nothing but the trainer write to the parameters?");
}

SKEIN_INLINE std::string cadence_notice(const run_config& c, std::uint64_t held_out) {
    const auto& saves = c.checkpoint;
    if (saves.keep_best.k < 1 || saves.keep_best.metric == "loss" || held_out == 0 ||
        saves.every <= 0)
        return {};
    if (c.eval_every > 0 && saves.every % c.eval_every == 0) return {};
    const auto evaluations =
        c.eval_every > 0 ? fmt::format("every {} steps", c.eval_every) : std::string("at the end");
    return fmt::format(
        "the best checkpoint is chosen among those of evaluated steps: checkpoints come "
        "every {} steps, evaluations {}; the others are kept only as the newest",
        saves.every, evaluations);
}

// ---- the user's code ----------------------------------------------------------------------------

/// Runs the user's code and says where it failed. The same step would fail again, so such an error
/// is a lasting one; but for what the system refused (a file, memory), which is worth another try.
struct user_code {
    int rank;
    std::uint64_t step;

    template <class Call>
    auto run(std::string_view what, Call call) const {
        try {
            return call();
        } catch (const redo_step&) {
            throw;
        } catch (const error& e) {
            // Of the transport, in a hook of the backward pass, or of the user's own choice.
            if (!e.where().empty() || may_be_echo(e.code())) throw;
            throw error(e).with_where(fmt::format("{} on rank {} at step {}", what, rank, step));
        } catch (const std::exception& e) {
            const auto* system = dynamic_cast<const std::system_error*>(&e);
            const auto* memory = dynamic_cast<const std::bad_alloc*>(&e);
            throw failed(what, type_name(typeid(e)), text_of(e),
                         system != nullptr   ? errc::io
                         : memory != nullptr ? errc::exhausted
                                             : errc::invalid_argument);
        } catch (...) {
            const auto* type = abi::__cxa_current_exception_type();
            throw failed(what, type != nullptr ? type_name(*type) : "something", "no text",
                         errc::invalid_argument);
        }
    }

private:
    [[nodiscard]] error failed(std::string_view what, const std::string& type,
                               std::string_view text, errc code) const {
        auto why =
            error(code, fmt::format("{} threw {} on rank {} at step {}: {}", what, type, rank, step,
                                    text.substr(0, text.find("\nException raised"))));
        if (code == errc::invalid_argument)
            why.with_hint("a restart would come to the same: mend the model, the loss or the data");
        return why;
    }
};

/// The loss, if it is one number.
SKEIN_INLINE at::Tensor one_number(at::Tensor loss) {
    if (loss.defined() && loss.numel() == 1) return loss;
    std::string shape;
    if (loss.defined())
        for (const auto extent : loss.sizes())
            shape += fmt::format("{}{}", shape.empty() ? "" : ", ", extent);
    throw error(errc::invalid_argument,
                loss.defined()
                    ? fmt::format("the loss must be one number, it has the shape [{}]", shape)
                    : std::string("the loss must be one number, it is no tensor at all"))
        .with_hint("return its mean over the batch, e.g. loss.mean()");
}

/// A loss as the sum over what counts, and how much that is: samples, or what the loss says.
struct loss_sum {
    at::Tensor value;    ///< the tensor to go backward from
    double sum = 0.0;    ///< of this and, added up, of others
    double weight = 0.0; ///< likewise
    bool weighted = false;

    void add(const loss_sum& other) {
        sum += other.sum;
        weight += other.weight;
    }
    [[nodiscard]] double mean() const noexcept { return weight > 0 ? sum / weight : 0.0; }
};

SKEIN_INLINE loss_sum checked_loss(weighted_loss from, std::size_t samples) {
    loss_sum out;
    out.value = one_number(std::move(from.sum));
    out.weighted = from.weight.defined();
    out.weight = static_cast<double>(samples);
    if (out.weighted) {
        if (from.weight.numel() == 1) out.weight = from.weight.item<double>();
        if (from.weight.numel() != 1 || !(out.weight >= 0) || !std::isfinite(out.weight))
            throw error(
                errc::invalid_argument,
                from.weight.numel() == 1
                    ? fmt::format("the weight of a loss is {}", out.weight)
                    : fmt::format("the weight of a loss has {} numbers", from.weight.numel()))
                .with_hint(
                    "return the sum of the losses and the sum of their weights, e.g. of a mask");
    }
    const auto value = out.value.item<double>();
    out.sum = out.weighted ? value : value * out.weight;
    return out;
}

/// Eval mode for all modules while it lives; then each has the mode of its own again.
class eval_modes {
public:
    explicit eval_modes(torch::nn::Module& root) : root_(root), was_(root.is_training()) {
        for (auto& each : root.modules(/*include_self=*/false))
            modules_.emplace_back(each, each->is_training());
        root.eval();
    }
    ~eval_modes() {
        root_.train(was_); // reaches down; children come behind their parents
        for (auto& [each, training] : modules_)
            if (each->is_training() != training) each->train(training);
    }
    eval_modes(const eval_modes&) = delete;
    eval_modes& operator=(const eval_modes&) = delete;

private:
    torch::nn::Module& root_;
    bool was_;
    std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modules_;
};

// ---- what the ranks find out together -----------------------------------------------------------

SKEIN_INLINE void require_phase(step_phase now, step_phase wanted, const char* call) {
    if (now == wanted) return;
    const char* const names[] = {"idle", "drawn", "computing", "agreed", "applied"};
    throw error(errc::usage,
                fmt::format("{} needs a step that is {}, this one is {}", call,
                            names[static_cast<int>(wanted)], names[static_cast<int>(now)]));
}

/// A number of a checkpoint; JSON has none for what is not finite (a loss that overflowed float16).
[[nodiscard]] SKEIN_INLINE double saved_number(const json& extra, const char* name) {
    const auto found = extra.find(name);
    return found != extra.end() && found->is_number() ? found->get<double>()
                                                      : std::numeric_limits<double>::quiet_NaN();
}

SKEIN_INLINE void restore_scale(loss_scale& scale, const json& extra) {
    if (extra.contains("loss_scale"))
        scale.restore(extra.at("loss_scale").value("value", scale.value()),
                      extra.at("loss_scale").value("good_steps", std::uint64_t{0}));
}

/// In another generation of the world: all have finished as many steps.
///   state  what of it is still to be done
SKEIN_INLINE void agree_on_step(const context& ctx, std::uint64_t finished, const char* state) {
    const auto all = gather_bytes(ctx, as_bytes(fmt::format("step {}{}", finished, state)));
    for (std::size_t r = 0; r < all.size(); ++r) {
        if (!as_text(all[r]).starts_with("step "))
            throw error(errc::not_supported,
                        fmt::format("not supported: rank {} begins anew in a world where others go "
                                    "on",
                                    r))
                .with_hint("resume all ranks from the last checkpoint");
        if (all[r] != all[0])
            throw error(errc::mismatch, fmt::format("rank 0 comes with {}, rank {} with {}",
                                                    as_text(all[0]), r, as_text(all[r])))
                .with_hint("resume from the last checkpoint");
    }
}

/// Collective: finds the first rank whose loss is broken, then throws on all of them.
///   mine  the loss of this rank
[[noreturn]] SKEIN_INLINE void not_finite(const context& ctx, double mine, const step_info& now) {
    const double none = static_cast<double>(ctx.world_size());
    double culprit = std::isfinite(mine) ? none : static_cast<double>(ctx.rank());
    all_reduce(ctx, std::span(&culprit, 1), dist::reduce_op::min);
    const auto what = culprit < none
                          ? fmt::format("the loss is not finite on rank {}", int(culprit))
                          : fmt::format("the gradient norm is {} (loss {})", now.grad_norm, mine);
    throw error(errc::not_finite, fmt::format("{} at step {}", what, now.step))
        .with_hint(fmt::format("lower the learning rate (now {:g}), warm up longer or clip harder; "
                               "restarting would give the same",
                               now.lr));
}

[[noreturn]] SKEIN_INLINE void always_overflows(const loss_scale& scale, std::uint64_t step) {
    throw error(errc::not_finite,
                fmt::format("the gradients overflowed float16 in {} steps in a row, at last with "
                            "a loss scale of {:g} at step {}",
                            scale.overflows(), scale.value(), step))
        .with_hint("lower the learning rate, or train with precision<bf16>");
}

/// Collective: the mean weight of a sample, of losses that are weighted.
[[nodiscard]] SKEIN_INLINE double weight_per_sample(const context& ctx, double mine,
                                                    double global_batch, std::uint64_t step) {
    all_reduce(ctx, std::span(&mine, 1), dist::reduce_op::sum);
    if (mine > 0) return mine / global_batch;
    throw error(errc::invalid_argument,
                fmt::format("the weights of all losses of step {} add up to {}", step, mine))
        .with_hint("is everything masked? leave such samples out of the data");
}

SKEIN_INLINE void restore_callbacks(session_parts& parts, const json& extra,
                                    const std::string& where) {
    if (!extra.contains("callbacks")) return;
    for (const auto& [name, text] : extra.at("callbacks").items()) {
        const auto hex = text.get<std::string>();
        byte_buffer bytes(hex.size() / 2);
        if (!from_hex(hex, bytes))
            throw error(errc::malformed, "the state of a callback is no hexadecimal text")
                .with_where(where);
        parts.restore({name, std::string(as_text(bytes))});
    }
}

/// The averages in place of the weights on every rank, or back. Ranks may share the weights: all
/// are done with the old ones before any is changed.
SKEIN_INLINE void swap_average(const context& ctx, weight_average& average, session_parts& parts) {
    double here = 0.0;
    all_reduce(ctx, std::span(&here, 1), dist::reduce_op::sum);
    average.swap();
    parts.publish();
}

[[nodiscard]] SKEIN_INLINE checkpoint_options checkpoint_options_of(const run_config& config) {
    checkpoint_options options;
    options.keep_last = static_cast<std::size_t>(std::max(1, config.checkpoint.keep_last));
    options.keep_best = static_cast<std::size_t>(std::max(0, config.checkpoint.keep_best.k));
    options.metric = config.checkpoint.keep_best.metric;
    options.lower_is_better = config.checkpoint.keep_best.order == metric_order::lowest;
    return options;
}

/// When the rate is another one than the schedule before a resume had for this step; else empty.
[[nodiscard]] SKEIN_INLINE std::string rate_notice(const json& extra, std::uint64_t step,
                                                   double now) {
    const double before = extra.value("next_lr", now);
    if (!(std::abs(now - before) > 1e-9 * std::abs(before))) return {};
    return fmt::format(
        "the learning rate of step {} is {:g}, by the schedule before it was {:g} (most "
        "schedules depend on the number of steps)",
        step + 1, now, before);
}

/// What the run keeps in memory and computes in, for a person.
SKEIN_INLINE void tell_state(reporter& to, const context& ctx, const run_config& config,
                             session_parts& parts, const flat_optimizer& optimizer) {
    std::vector<at::Tensor> states;
    for (const auto& [name, state] : optimizer.states()) states.push_back(state);
    const auto policy = parts.precision();
    const auto shape = shape_of(ctx, config, states_of(optimizer.options()), policy);
    if (const auto text = memory_notice(parts.strategy_name(), parts.store(), states, shape);
        !text.empty())
        to.note(text);
    if (const auto text = describe(policy); !text.empty())
        to.note(fmt::format("computes in {}, updates and saves in float32", text));
    if (const auto text = precision_notice(policy); !text.empty()) to.notice(text);
}

} // namespace skein::train::detail


// ======== skein/train/detail/session_evaluation.ipp, continued
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

using report::metric_value;

class evaluator {
public:
    evaluator(session_parts& parts, const context& ctx, const run_config& config)
        : parts_(parts), ctx_(ctx), config_(config) {}

    void use(std::uint64_t samples, numbered_loss loss) {
        samples_ = samples;
        loss_ = std::move(loss);
    }
    [[nodiscard]] std::uint64_t samples() const noexcept { return samples_; }
    /// The world is another one.
    void rebind() noexcept { names_.forget(); }

    /// "val_loss" and what the loss reports, over the ranks; nothing without samples. Collective.
    [[nodiscard]] std::vector<metric_value> run(std::uint64_t step) {
        if (samples_ == 0) return {};
        const auto limit = static_cast<std::uint64_t>(config_.eval_samples);
        const auto count = limit > 0 ? std::min(samples_, limit) : samples_;
        const auto [first, last] = rank_range(count, ctx_.rank(), ctx_.world_size());
        report::metric_set mine, reported{taken_names};
        mine.mean("val_loss", 0.0, 0.0);
        {
            at::NoGradGuard no_grad;
            parts_.begin_evaluation();
            const eval_modes modes(parts_.module());
            pass(step, first, last, mine, reported);
            parts_.end_evaluation();
        }
        auto merged = names_.merge(ctx_, mine, reported);
        for (std::size_t i = 1; i < merged.size(); ++i) merged[i].name.insert(0, "val_");
        check(step, merged);
        return merged;
    }

private:
    void pass(std::uint64_t step, std::uint64_t first, std::uint64_t last, report::metric_set& mine,
              report::metric_set& reported) {
        std::vector<std::uint64_t> ids;
        for (auto at = first; at < last; at += ids.size()) {
            ids.clear();
            for (auto id = at; id < last && ids.size() < batch(); ++id) ids.push_back(id);
            reported.weigh(static_cast<double>(ids.size()));
            const user_code here{ctx_.rank(), step};
            const auto loss = here.run("the loss of an evaluation", [&] {
                try {
                    return checked_loss(loss_(ids, reported), ids.size());
                } catch (const redo_step&) {
                    throw error(errc::usage,
                                "redo_step was thrown in an evaluation: it has no step");
                }
            });
            mine.mean("val_loss", loss.weighted ? loss.mean() : loss.value.item<double>(),
                      loss.weight);
        }
    }

    void check(std::uint64_t step, const std::vector<metric_value>& merged) const {
        if (!std::isfinite(merged[0].value))
            throw error(errc::not_finite, fmt::format("the validation loss is {} after step {}",
                                                      merged[0].value, step))
                .with_hint("lower the learning rate, warm up longer or clip harder");
        const auto& best = config_.checkpoint.keep_best.metric;
        if (!config_.checkpoint.enabled || config_.checkpoint.keep_best.k < 1 || best == "loss" ||
            report::find_metric(merged, best) != nullptr)
            return;
        name_list list;
        list.add("loss"); // as the first of the evaluation is also called
        for (const auto& m : merged) list.add(m.name);
        throw error(
            errc::usage,
            fmt::format("checkpoint.keep_best.metric '{}' is no number of an evaluation", best))
            .with_hint(list.text("there are none"));
    }

    [[nodiscard]] std::size_t batch() const {
        if (config_.eval_batch > 0) return static_cast<std::size_t>(config_.eval_batch);
        const auto parts = ctx_.world_size() * config_.accumulation;
        return static_cast<std::size_t>(std::max<std::int64_t>(1, config_.global_batch / parts));
    }

    session_parts& parts_;
    const context& ctx_;
    const run_config& config_;
    std::uint64_t samples_ = 0;
    numbered_loss loss_;
    shared_names names_;
};

} // namespace skein::train::detail


// ======== skein/train/detail/session_between.ipp, continued
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// What a step and what lies between two of them both work on. The session owns it.
struct run_state {
    const context& ctx;
    const run_config& config;
    schedule rate;
    std::unique_ptr<session_parts> parts{};
    std::unique_ptr<input_source> input{};
    std::optional<flat_optimizer> optimizer{};
    std::optional<feeder> feeder{};
    std::optional<loss_scale> scale{}; ///< in float16
    std::uint64_t total = 0;           ///< steps of the run; 0: not known
    std::uint64_t step = 0;            ///< finished
    bool stopped = false, stop_wanted = false, ended = false;
    std::string stop_reason{}; ///< a callback's of this rank
    fit_result result{};

    [[nodiscard]] bool is_last() const noexcept { return total > 0 ? step == total : ended; }
    void ask_stop(action wanted) {
        if (wanted != action::stop) return;
        stop_wanted = true;
        if (parts && stop_reason.empty()) stop_reason = parts->stop_reason();
    }
};

class between_steps {
public:
    explicit between_steps(run_state& run) : run_(run), ctx_(run.ctx), config_(run.config) {}

    /// Once the strategy is made.
    void open() { evaluator_.emplace(*run_.parts, ctx_, config_); }
    void evaluate_on(std::uint64_t samples, numbered_loss loss) {
        evaluator_->use(samples, std::move(loss));
    }
    /// Samples of the evaluation set.
    [[nodiscard]] std::uint64_t held_out() const noexcept { return evaluator_->samples(); }

    /// Opens the run's folder and resumes, if that is asked for; then all is told.
    void begin(const report::settings& described) {
        state_.emplace(run_.parts->store(), *run_.optimizer, run_.feeder->order());
        report_.emplace(ctx_, config_, described);
        const auto resumed_from = open_checkpoints();
        run_.result.first_step = run_.step;
        const auto start = start_info_of(resumed_from);
        report_->begin(start);
        for (const auto& text : notices_) report_->notice(text);
        if (ctx_.is_first()) tell_state(*report_, ctx_, config_, *run_.parts, *run_.optimizer);
        run_.parts->tell(start);
    }

    /// Evaluation, row and checkpoint of the step that is committed, as they are due.
    void end_of_step(const step_info& now) {
        const auto due = [&](std::int64_t every) {
            return run_.is_last() ||
                   (every > 0 && run_.step % static_cast<std::uint64_t>(every) == 0);
        };
        std::vector<metric_value> evaluated;
        if (due(config_.eval_every) && !run_.stopped) evaluated = evaluate();
        report_->step(now, evaluated);
        if (due(config_.checkpoint.every) || (run_.stopped && config_.checkpoint.on_stop)) save(evaluated);
    }

    /// The last evaluation, files, callbacks.
    ///   begun         when the session began, by seconds_now()
    ///   tokens_per_s  of all steps
    fit_result finish(double begun, double tokens_per_s) {
        run_.feeder->quiet();
        if (evaluated_at_ != run_.step && !run_.stopped) (void)evaluate();
        if (!run_.result.stop_reason.empty())
            report_->note(
                fmt::format("stopped after step {}: {}", run_.step, run_.result.stop_reason));
        report_->finish();
        if (auto* const average = run_.optimizer->average(); average && average->options().keep)
            swap_average(ctx_, *average, *run_.parts);
        run_.parts->finish();
        finish_result(seconds_now() - begun, tokens_per_s);
        run_.parts->tell(run_.result);
        leave_screen(ctx_, config_, run_.result);
        return run_.result;
    }

    /// The context is in another generation of its world.
    ///   end_due  the end of the last step is to be made again
    void rebind(bool end_due) {
        evaluator_->rebind();
        if (saver_) open_saver();
        auto start = start_info_of({});
        if (end_due) start.first_step -= 1; // its row is written again
        report_->rebind(start);
    }

private:
    [[nodiscard]] start_info start_info_of(const std::string& resumed_from) const {
        return {.rank = ctx_.rank(),
                .world_size = ctx_.world_size(),
                .first_step = run_.step,
                .total_steps = run_.total,
                .parameters = run_.parts->store().trainable(),
                .run_path = report_->path(),
                .resumed_from = resumed_from,
                .strategy = run_.parts->strategy_name(),
                .epochs = epochs_text(config_, *run_.input)};
    }

    std::vector<metric_value> evaluate() {
        const auto begin = seconds_now();
        run_.feeder->quiet();
        auto* const average = run_.optimizer->average();
        const bool averaged =
            average != nullptr && average->options().evaluate && evaluator_->samples() > 0;
        if (averaged) swap_average(ctx_, *average, *run_.parts);
        const auto merged = [&] {
            try {
                return evaluator_->run(run_.step);
            } catch (...) { // whoever catches it has the weights that are trained
                if (averaged) average->swap();
                throw;
            }
        }();
        evaluated_at_ = run_.step;
        if (averaged) swap_average(ctx_, *average, *run_.parts);
        if (merged.empty()) return merged;
        run_.result.val_loss = merged[0].value;
        run_.result.val_step = run_.step;
        run_.ask_stop(run_.parts->tell(eval_info{.rank = ctx_.rank(),
                                                 .step = run_.step,
                                                 .metrics = &merged,
                                                 .seconds = seconds_now() - begin}));
        return merged;
    }

    /// Makes the checkpointer and, if asked for, goes on from the newest one; returns its path.
    std::string open_checkpoints() {
        if (!config_.checkpoint.enabled) return {};
        open_saver();
        if (auto text = cadence_notice(config_, evaluator_->samples()); !text.empty())
            notices_.push_back(std::move(text));
        if (config_.resume != resume_mode::latest && ctx_.attempt() == 0) return {};
        auto found = saver_->load_latest();
        if (!found) return {};
        restore(*found);
        return found->path();
    }

    void open_saver() {
        saver_.emplace(disk_, report_->checkpoints(), checkpoint_options_of(config_),
                       make_checkpoint_world(ctx_));
    }

    void restore(const loaded_checkpoint& found) {
        state_->restore(found);
        run_.parts->publish();
        run_.step = found.step();
        run_.result.checkpoint = found.path();
        const auto extra =
            parse_json(found.extra(), {.max_bytes = 256u << 20, .max_depth = 64}).value();
        run_.result.loss = saved_number(extra, "loss");
        if (run_.input->is_stream())
            run_.feeder->restore_stream(extra.at("stream"), found.path());
        else
            run_.feeder->rewind();
        run_.stop_wanted = extra.value("stop_wanted", false);
        restore_callbacks(*run_.parts, extra, found.path());
        if (run_.scale) restore_scale(*run_.scale, extra);
        if (run_.total > 0 && run_.step > run_.total)
            throw error(errc::usage, fmt::format("the run has {} steps already, {} were asked for",
                                                 run_.step, run_.total))
                .with_where(found.path())
                .with_hint("ask for more steps, or another run name");
        if (run_.total == 0 || run_.step < run_.total)
            if (auto text = rate_notice(extra, run_.step, learning_rate(run_.rate, run_.step));
                !text.empty())
                notices_.push_back(std::move(text));
    }

    void save(const std::vector<metric_value>& evaluated) {
        if (!saver_) return;
        run_.parts->sync_buffers();
        json extra = json::object();
        if (run_.input->is_stream()) extra["stream"] = run_.feeder->saved_stream();
        if (run_.scale)
            extra["loss_scale"] = {{"value", run_.scale->value()},
                                   {"good_steps", run_.scale->good_steps()}};
        // Not those that have been granted, by a stop or by the run's end: who resumes it wants it
        // to go on.
        double stop = run_.stop_wanted && !run_.stopped && !run_.is_last() ? 1.0 : 0.0;
        all_reduce(ctx_, std::span(&stop, 1), dist::reduce_op::max);
        extra["stop_wanted"] = stop > 0;
        if (ctx_.is_first()) // whose extra is written
            for (const auto& each : run_.parts->states())
                extra["callbacks"][each.name] = to_hex(as_bytes(std::string_view(each.state)));
        auto what = state_->save(
            run_.step, config_.seed,
            {{"loss", run_.result.loss}, {"next_lr", learning_rate(run_.rate, run_.step)}},
            dump_json(extra));
        what.metrics["loss"] = run_.result.loss;
        for (const auto& m : evaluated) what.metrics[m.name] = m.value;
        const auto saved = saver_->save(what);
        run_.result.checkpoint = saved.path;
        const checkpoint_info info{ctx_.rank(), run_.step, saved.path, saved.bytes, saved.seconds};
        report_->saved(info);
        run_.parts->tell(info);
    }

    void finish_result(double seconds, double tokens_per_s) {
        report::metric_set m;
        m.max("rss", peak_rss_bytes());
        run_.result.peak_rss_bytes = merge(ctx_, m)[0].value;
        run_.result.steps = run_.step;
        run_.result.total = run_.total;
        run_.result.seconds = seconds;
        run_.result.tokens_per_s = tokens_per_s;
        run_.result.run_name = report_->name();
        run_.result.run_path = report_->path();
        run_.result.stopped = run_.stopped && !run_.is_last();
    }

    run_state& run_;
    const context& ctx_;
    const run_config& config_;
    std::optional<evaluator> evaluator_;
    std::optional<training_state> state_;
    std::optional<reporter> report_;
    posix_disk disk_{link_policy::refuse};
    std::optional<checkpointer> saver_;
    std::uint64_t evaluated_at_ = std::numeric_limits<std::uint64_t>::max();
    std::vector<std::string> notices_; // to be told when the run begins
};

} // namespace skein::train::detail

// ======== skein/train/detail/session_clock.ipp
// Where the time of a step goes. Used by <skein/train/detail/session_core.ipp> alone.


#include <algorithm>
#include <cstdint>
#include <utility>

namespace skein::train::detail {

class step_clock {
public:
    explicit step_clock(const context& ctx) : ctx_(ctx) {}

    /// Since the row before; all in seconds.
    [[nodiscard]] step_timing& time() noexcept { return time_; }
    /// Of the exchange with the backward pass, in [0, 1].
    [[nodiscard]] double overlap() const noexcept { return overlap_; }

    void begin_step() { begun_ = seconds_now(); }
    void begin_compute() { busy_ = busy(); }
    /// A forward pass begins with the batch in hand, or with the loss when nobody asked for one.
    void begin_forward() {
        if (forward_begun_ <= 0) forward_begun_ = seconds_now();
    }
    void end_forward() { time_.forward += seconds_now() - std::exchange(forward_begun_, 0.0); }

    /// Runs what waits for other ranks; the seconds that took.
    template <class Call>
    double waiting(Call call) {
        const auto begin = seconds_now();
        call();
        const auto seconds = seconds_now() - begin;
        if (ctx_.world_size() > 1) time_.exposed += seconds;
        return seconds;
    }
    void count_overlap(double waited) {
        const double worked = busy() - busy_;
        overlap_ = worked > 0 ? std::clamp(1.0 - waited / worked, 0.0, 1.0) : 0.0;
    }

    /// The row is agreed on: from here on the next one's time counts, that of the row itself first.
    void begin_row(double waited) {
        time_ = {};
        if (ctx_.world_size() > 1) time_.exposed = waited;
    }
    /// What was computed is thrown away.
    void forget_compute() noexcept {
        time_.data = time_.forward = time_.backward = 0.0;
        forward_begun_ = 0.0;
    }

    void end_step(step_info& now, std::uint64_t samples, std::int64_t tokens_per_sample) {
        const double tokens = static_cast<double>(samples) *
                              static_cast<double>(std::max<std::int64_t>(1, tokens_per_sample));
        now.seconds = seconds_now() - begun_;
        now.tokens_per_s = now.seconds > 0 ? tokens / now.seconds : 0.0;
        seconds_ += now.seconds;
        tokens_ += tokens;
    }
    /// Over all steps.
    [[nodiscard]] double tokens_per_s() const noexcept {
        return seconds_ > 0 ? tokens_ / seconds_ : 0.0;
    }

private:
    [[nodiscard]] double busy() const {
        return ctx_.comm() != nullptr ? to_seconds(ctx_.comm()->stats().busy) : 0.0;
    }

    const context& ctx_;
    step_timing time_;
    double begun_ = 0.0, forward_begun_ = 0.0, busy_ = 0.0, overlap_ = 0.0;
    double seconds_ = 0.0, tokens_ = 0.0; // of all steps
};

} // namespace skein::train::detail

// ======== skein/train/detail/session_row.ipp
// The one exchange at the end of what a step computes: its row, and what the ranks decide with it.
// Used by <skein/train/detail/session_core.ipp> alone.


#include <algorithm>
#include <string>
#include <vector>

namespace skein::train::detail {

/// The row of the step, equal on all ranks. Nothing is changed by an exchange.
class row_exchange {
public:
    explicit row_exchange(const context& ctx) : ctx_(ctx) {}

    /// `now` gets the loss and the times of the slowest ranks.
    ///   own          the trainer's numbers, the loss first
    ///   reported     the user's, as this rank knows them
    ///   stop         0, 1, or the signal that asked for it
    ///   all_touched  every parameter had a gradient here
    void exchange(const report::metric_set& own, const report::metric_set& reported, double stop,
                  bool all_touched, step_info& now, step_clock& clock) {
        const auto& t = clock.time();
        double control[] = {stop,          all_touched ? 0.0 : 1.0,
                            now.grad_norm, -now.grad_norm,
                            t.data,        t.forward,
                            t.backward,    t.exposed,
                            t.optimizer,   -clock.overlap()};
        values_.clear();
        const double waited =
            clock.waiting([&] { values_ = names_.merge(ctx_, own, reported, control); });
        now.loss = values_[0].value;
        now.timing = {control[4], control[5], control[6], control[7], control[8], -control[9]};
        clock.begin_row(waited);
        stop_ = control[0];
        some_untouched_ = control[1] > 0.0;
        most_ = control[2];
        least_ = -control[3];
    }

    [[nodiscard]] const std::vector<report::metric_value>& values() const noexcept {
        return values_;
    }
    /// The gradient norms of all ranks: two numbers that are equal, or the ranks have come apart.
    [[nodiscard]] double least_norm() const noexcept { return least_; }
    [[nodiscard]] double most_norm() const noexcept { return most_; }
    [[nodiscard]] bool some_untouched() const noexcept { return some_untouched_; }
    [[nodiscard]] bool stops() const noexcept { return stop_ > 0.0; }
    /// The signal that asked for the stop on some rank; 0 when it was none.
    [[nodiscard]] int stop_signal() const noexcept {
        return stop_ > 1.0 ? static_cast<int>(stop_) : 0;
    }
    /// Collective, once the ranks stop: why, as the first rank says that knows.
    [[nodiscard]] std::string reason(const std::string& mine) const {
        for (const auto& each : gather_bytes(ctx_, as_bytes(mine)))
            if (!each.empty()) return std::string(as_text(each));
        return {};
    }
    /// The world is another one.
    void rebind() noexcept { names_.forget(); }

private:
    const context& ctx_;
    shared_names names_; // of what ranks report
    std::vector<report::metric_value> values_;
    double stop_ = 0.0, least_ = 0.0, most_ = 0.0;
    bool some_untouched_ = false;
};

} // namespace skein::train::detail


// ======== skein/train/detail/session_core.ipp, continued
#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

class session_core {
public:
    /// An error that leaves is told to the peers, with the reason itself and before the strategy's
    /// destructor ends its exchange. The first abort counts.
    template <class Call>
    auto guarded(Call call) {
        try {
            return call();
        } catch (const redo_step&) {
            throw;
        } catch (...) {
            const auto why = to_error(std::current_exception());
            abort(why);
            throw;
        }
    }
    void abort(const error& why) noexcept {
        if (run_.parts) run_.parts->abort(why);
        ctx_.abort(why);
    }

    session_core(const session_request& request, const make_parts& make)
        : ctx_(*request.ctx), config_(*request.config), described_(described_settings(request)),
          reported_(*request.reported), run_{.ctx = ctx_, .config = config_, .rate = request.rate},
          row_(ctx_), clock_(ctx_) {
        guarded([&] {
            reported_.clear();
            require_same(ctx_, all_settings(request));
            run_.parts = make();
            if (run_.parts->precision().compute == at::kHalf) run_.scale.emplace();
            run_.optimizer.emplace(request.options, run_.parts->store());
            if (!request.options.more.groups.empty())
                require_same(ctx_, run_.optimizer->effect_hash(),
                             "what the parameter groups match");
            between_.open();
            for (const auto& f : run_.parts->store().fixed())
                if (f.is_buffer) buffers_.emplace_back(f.tensor, at::Tensor());
        });
        run_.result.rank = ctx_.rank();
        run_.result.val_loss = std::numeric_limits<double>::quiet_NaN();
    }
    /// Who leaves a loop of their own in the middle of a step, by an exception or not, leaves peers
    /// waiting: they are told before anything here is waited for.
    ~session_core() {
        if (!run_.parts || (phase_ == step_phase::idle && std::uncaught_exceptions() == 0)) return;
        const error why(errc::aborted,
                        fmt::format("rank {} left its session in the middle of step {}",
                                    ctx_.rank(), run_.step + 1));
        abort(why);
    }
    session_core(const session_core&) = delete;
    session_core& operator=(const session_core&) = delete;

    // ---- the run -----------------------------------------------------------------------------

    void begin(std::unique_ptr<input_source> input) {
        if (run_.input)
            throw error(errc::usage, "a session has steps once")
                .with_hint("open another one, or keep what steps() gave");
        begun_ = seconds_now();
        run_.input = std::move(input);
        require_same(ctx_, data_settings(*run_.input, between_.held_out()));
        run_.feeder.emplace(ctx_, config_, *run_.input);
        run_.total = run_.feeder->total();
        between_.begin(described_);
        // A model that is in eval mode as a whole is to be trained; a submodule may be so on
        // purpose.
        if (!run_.parts->module().is_training()) run_.parts->module().train();
    }

    fit_result finish() {
        if (!run_.input)
            throw error(errc::usage, "a session ends that has not begun")
                .with_hint("ask it for steps() first");
        if (phase_ == step_phase::applied) commit();
        redo();
        if (run_.total == 0 && !run_.stopped) run_.total = run_.step;
        return between_.finish(begun_, clock_.tokens_per_s());
    }

    fit_result run(const batch_loss& loss) {
        while (draw()) {
            try {
                while (auto* const micro = begin_micro())
                    pass(*micro, [&] {
                        reported_.weigh(static_cast<double>(micro->samples));
                        auto value = loss(batch_of(*micro), reported_);
                        micro->value.reset(); // the graph keeps what it needs
                        return value;
                    });
                agree();
            } catch (const redo_step&) {
                redo();
                continue;
            }
            apply();
            commit();
        }
        return finish();
    }

    // ---- one step ----------------------------------------------------------------------------

    bool draw() {
        expect(step_phase::idle, "draw()");
        if (!run_.input) throw error(errc::usage, "a session draws before steps() or begin()");
        if (run_.stopped || run_.ended) return false;
        ctx_.note_begun();
        clock_.begin_step();
        if (!upcoming_) upcoming_ = draw_batch();
        if (!upcoming_) {
            run_.ended = true;
            return false;
        }
        drawn_ = std::move(upcoming_);
        upcoming_.reset();
        run_.feeder->look_ahead(run_.step);
        micro_ = passed_ = 0;
        losses_ = {};
        reported_before_ = reported_;
        at::NoGradGuard no_grad;
        for (auto& [buffer, before] : buffers_) before = buffer.detach().clone();
        clock_.begin_compute();
        run_.parts->begin_step();
        phase_ = step_phase::drawn;
        return true;
    }

    /// The next micro-batch that has samples; those without only take part in the exchange.
    micro_batch* begin_micro() {
        const auto parts = drawn_ ? drawn_->micros.size() : 0;
        const auto all = static_cast<std::size_t>(config_.accumulation);
        while (drawn_ && micro_ < all) {
            // By the micro-batch's number in the global batch: many ranks draw what one process
            // draws.
            seed_step(config_.seed, run_.step,
                      ctx_.rank() * static_cast<int>(all) + static_cast<int>(micro_));
            run_.parts->begin_micro(micro_ + 1 == all);
            phase_ = step_phase::computing;
            const auto at = micro_++;
            // finish_backward() sends what no hook has sent.
            if (at < parts && drawn_->micros[at].samples > 0) return &drawn_->micros[at];
        }
        return nullptr;
    }

    const void* next_micro() {
        if (phase_ != step_phase::drawn && phase_ != step_phase::computing) return nullptr;
        in_hand_ = begin_micro();
        reported_.weigh(in_hand_ != nullptr ? static_cast<double>(in_hand_->samples) : 1.0);
        if (in_hand_ == nullptr) return nullptr;
        return user_code{ctx_.rank(), run_.step + 1}.run("the data",
                                                         [&] { return batch_of(*in_hand_); });
    }

    void backward(const weighted_loss& loss) {
        if (in_hand_ == nullptr)
            throw error(errc::usage, "backward() without a micro-batch in hand")
                .with_hint("call it once for each micro-batch of the step");
        if (loss.weight.defined() && !weighted_)
            throw error(errc::usage, "a weighted loss that was not expected")
                .with_hint("call session.expect_weights() before the first step, on every rank");
        pass(*std::exchange(in_hand_, nullptr), [&] { return loss; });
    }

    /// Everything is summed over the ranks and decided; nothing is changed yet.
    void agree() {
        if (phase_ != step_phase::drawn) expect(step_phase::computing, "agree()");
        if (begin_micro() != nullptr || in_hand_ != nullptr || passed_ < drawn_->with_samples())
            throw error(errc::usage,
                        fmt::format("backward() was called for {} of {} micro-batches of step {}",
                                    passed_, drawn_->with_samples(), run_.step + 1));
        reported_.weigh(1.0); // no batch is in hand
        run_.feeder->look_ahead(run_.step);
        clock_.count_overlap(clock_.waiting([&] { run_.parts->finish_backward(); }));

        const double global_batch = static_cast<double>(drawn_->global_batch);
        now_ = {
            .rank = ctx_.rank(), .step = run_.step + 1, .lr = learning_rate(run_.rate, run_.step)};
        const double mine = run_.parts->store().own_squared_norm();
        clock_.waiting([&] {
            divisor_ = scale();
            if (weighted_)
                divisor_ *= weight_per_sample(ctx_, losses_.weight, global_batch, run_.step + 1);
            now_.grad_norm = std::sqrt(run_.parts->squared_norm(mine)) / divisor_;
        });
        exchange_row();
        phase_ = step_phase::agreed;
    }

    void apply() {
        expect(step_phase::agreed, "apply()");
        const auto begin = seconds_now();
        const double scale = clip_to(now_.grad_norm, config_.clip).scale * divisor_;
        if (!overflowed()) run_.optimizer->step(now_.lr, scale, present_, config_.clip_value);
        if (run_.scale) run_.scale->update(!overflowed());
        if (run_.scale && run_.scale->overflows() >= loss_scale::most_overflows)
            always_overflows(*run_.scale, run_.step + 1);
        clock_.time().optimizer = seconds_now() - begin;
        phase_ = step_phase::applied;
        clock_.waiting([&] { run_.parts->publish(); });
    }

    void commit() {
        expect(step_phase::applied, "commit()");
        run_.step += 1;
        run_.feeder->commit(*drawn_);
        reported_.clear();
        run_.stopped = row_.stops();
        if (row_.stop_signal() > 0) run_.result.stop_signal = row_.stop_signal();
        now_.metrics = &row_.values();
        run_.result.loss = now_.loss;
        clock_.end_step(now_, drawn_->global_batch, config_.tokens_per_sample);
        drawn_.reset();
        phase_ = step_phase::idle;
        ask_stop(run_.parts->tell(now_));
        if (run_.total == 0 && !run_.stopped) { // is this the last one?
            upcoming_ = draw_batch();
            run_.ended = !upcoming_.has_value();
        }
        finish_step();
    }

    void complete() {
        if (phase_ == step_phase::drawn || phase_ == step_phase::computing) agree();
        if (phase_ == step_phase::agreed) apply();
        if (phase_ == step_phase::applied) commit();
    }

    void redo() {
        if (phase_ == step_phase::idle) return;
        if (phase_ == step_phase::applied)
            throw error(errc::usage,
                        fmt::format("step {} is applied: it cannot be taken back", run_.step + 1));
        if (phase_ == step_phase::computing) {
            while (micro_ < static_cast<std::size_t>(config_.accumulation)) (void)begin_micro();
            run_.parts->finish_backward(); // the others wait for our part of the exchange
        }
        take_back();
    }

    /// The context is in another generation of its world.
    void rebind() {
        if (!run_.input)
            throw error(errc::usage, "a session that has not begun cannot go on in another world")
                .with_hint("open it with the new context");
        run_.feeder->quiet();
        const bool applied = phase_ == step_phase::applied;
        agree_on_step(ctx_, run_.step,
                      applied    ? ", not committed"
                      : end_due_ ? ", its end to do"
                                 : "");
        run_.parts->rebind();
        run_.optimizer->rebind();
        auto* const average = run_.optimizer->average(); // an evaluation broke with it in place
        if (average != nullptr && average->is_shown()) average->swap();
        run_.parts->publish(); // some ranks may not have seen the last values
        if (applied)
            run_.feeder->commit(*drawn_); // what was applied is not drawn again; commit() is next
        else if (phase_ != step_phase::idle || drawn_)
            take_back();
        upcoming_.reset();
        row_.rebind();
        run_.feeder->rebind();
        between_.rebind(end_due_);
        run_.ended = false; // the end of a stream is found again
        if (end_due_) finish_step();
    }
    void use_evaluation(std::uint64_t samples, numbered_loss loss) {
        between_.evaluate_on(samples, std::move(loss));
    }
    void expect_weights() noexcept { weighted_ = true; }
    void ask_stop(action wanted) { run_.ask_stop(wanted); }
    report::metric_set& reported() noexcept { return reported_; }
    [[nodiscard]] step_phase phase() const noexcept { return phase_; }
    [[nodiscard]] std::uint64_t finished() const noexcept { return run_.step; }
    [[nodiscard]] double micro_loss() const noexcept { return losses_.mean(); }

private:
    /// The step that was drawn has not been.
    void take_back() {
        at::NoGradGuard no_grad;
        for (auto& [buffer, before] : buffers_) buffer.copy_(before);
        reported_ = reported_before_;
        drawn_.reset();
        in_hand_ = nullptr;
        run_.feeder->rewind();
        clock_.forget_compute();
        phase_ = step_phase::idle;
    }

    void expect(step_phase wanted, const char* call) const { require_phase(phase_, wanted, call); }

    [[nodiscard]] std::optional<drawn_batch> draw_batch() {
        const auto begin = seconds_now();
        auto batch = run_.feeder->next(run_.step);
        clock_.time().data += seconds_now() - begin;
        return batch;
    }

    [[nodiscard]] const void* batch_of(micro_batch& micro) {
        const auto begin = seconds_now();
        const void* const batch = run_.feeder->batch_of(micro);
        clock_.time().data += seconds_now() - begin;
        clock_.begin_forward();
        return batch;
    }

    /// Loss and backward pass of one micro-batch.
    template <class Loss>
    void pass(const micro_batch& micro, Loss get) {
        const user_code here{ctx_.rank(), run_.step + 1};
        clock_.begin_forward();
        const auto loss = here.run("the loss", [&] { return checked_loss(get(), micro.samples); });
        clock_.end_forward();
        const auto forward_end = seconds_now();
        // A mean is weighted by its share of the global batch, so that the sum over ranks is the
        // batch's mean. A sum over weights is divided by them when all are known.
        const double share = (loss.weighted ? 1.0 : static_cast<double>(micro.samples)) /
                             static_cast<double>(drawn_->global_batch) * scale();
        here.run("the backward pass",
                 [&] { loss.value.backward(at::full_like(loss.value, share)); });
        clock_.time().backward += seconds_now() - forward_end;
        losses_.add(loss);
        passed_ += 1;
    }

    // ---- what the ranks agree on -------------------------------------------------------------

    /// The row of the step, equal on all ranks, and what they decide with it: whether the numbers
    /// are finite, whether to stop, which parameters had a gradient. Nothing is changed before.
    void exchange_row() {
        report::metric_set row;
        row.mean("loss", losses_.mean(), losses_.weight);
        row.last("lr", now_.lr).last("grad_norm", now_.grad_norm);
        if (run_.scale) row.last("loss_scale", scale());
        const auto& touched = run_.parts->store().touched();
        const bool all_touched = std::ranges::find(touched, 0.0) == touched.end();
        const double stop = ctx_.stop_requested() ? std::max(1.0, double(ctx_.stop_signal()))
                            : run_.stop_wanted    ? 1.0
                                                  : 0.0;
        row_.exchange(row, reported_, stop, all_touched, now_, clock_);
        if (!run_.scale && !(std::isfinite(now_.loss) && std::isfinite(now_.grad_norm)))
            not_finite(ctx_, losses_.mean(), now_);
        if (row_.most_norm() != row_.least_norm() && !overflowed())
            come_apart(run_.step + 1, row_.least_norm(), row_.most_norm());
        present_.clear();
        if (row_.some_untouched()) { // rarely: who had which
            present_ = touched;
            all_reduce(ctx_, present_, dist::reduce_op::max);
        }
    }

    [[nodiscard]] double scale() const noexcept { return run_.scale ? run_.scale->value() : 1.0; }
    /// The step is left out: on every rank, because the norm is the same on all.
    [[nodiscard]] bool overflowed() const noexcept {
        return run_.scale && !(std::isfinite(now_.loss) && std::isfinite(now_.grad_norm));
    }

    /// Evaluation, files and checkpoint, which a world that breaks meanwhile leaves to be done.
    void finish_step() {
        end_due_ = true;
        if (run_.stopped && row_.stop_signal() == 0)
            run_.result.stop_reason = row_.reason(run_.stop_reason);
        between_.end_of_step(now_);
        end_due_ = false;
    }

    const context& ctx_;
    const run_config& config_;
    report::settings described_;
    report::metric_set& reported_;
    run_state run_;
    between_steps between_{run_};
    bool weighted_ = false;
    bool end_due_ = false; // of the step that was committed last

    // The step that is not committed
    step_phase phase_ = step_phase::idle;
    std::optional<drawn_batch> drawn_, upcoming_;
    std::size_t micro_ = 0, passed_ = 0; // micro-batches that were begun, and that had a loss
    micro_batch* in_hand_ = nullptr;
    loss_sum losses_;
    double divisor_ = 1.0;
    step_info now_;
    row_exchange row_;
    std::vector<double> present_; // by segment, when not all had a gradient; else empty
    report::metric_set reported_before_;
    std::vector<std::pair<at::Tensor, at::Tensor>> buffers_; // and their values when it was drawn

    double begun_ = 0.0;
    step_clock clock_;
};

} // namespace skein::train::detail


// ======== skein/train/detail/session.ipp, continued
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace skein::train::detail {

SKEIN_INLINE void begin_training(const context& ctx, const run_config& config) {
    validate(config, ctx.world_size());
    at::set_num_threads(config.scaling.threads > 0 ? config.scaling.threads : 1);
    keep_freed_memory();
}

} // namespace skein::train::detail

namespace skein::train {

SKEIN_INLINE session::session(const session_request& request, const detail::make_parts& make)
    : core_(std::make_unique<detail::session_core>(request, make)) {}
SKEIN_INLINE session::~session() = default;
SKEIN_INLINE void session::expect_weights() noexcept { core_->expect_weights(); }
SKEIN_INLINE void session::request_stop() noexcept { core_->ask_stop(action::stop); }
SKEIN_INLINE step_phase session::phase() const noexcept { return core_->phase(); }
SKEIN_INLINE std::uint64_t session::finished() const noexcept { return core_->finished(); }
SKEIN_INLINE double session::micro_loss() const noexcept { return core_->micro_loss(); }
SKEIN_INLINE void session::use_evaluation(std::uint64_t samples, detail::numbered_loss loss) {
    core_->use_evaluation(samples, std::move(loss));
}
SKEIN_INLINE void session::report(report::metric_kind kind, std::string_view name, double value,
                                  std::optional<double> weight) {
    core_->guarded([&] { (void)core_->reported().add(kind, name, value, weight); });
}
SKEIN_INLINE void session::begin(std::unique_ptr<detail::input_source> input) {
    core_->guarded([&] { core_->begin(std::move(input)); });
}
SKEIN_INLINE bool session::draw() {
    return core_->guarded([&] { return core_->draw(); });
}
SKEIN_INLINE const void* session::next_micro() {
    return core_->guarded([&] { return core_->next_micro(); });
}
SKEIN_INLINE void session::backward(const weighted_loss& loss) {
    core_->guarded([&] { core_->backward(loss); });
}
SKEIN_INLINE void session::agree() {
    core_->guarded([&] { core_->agree(); });
}
SKEIN_INLINE void session::apply() {
    core_->guarded([&] { core_->apply(); });
}
SKEIN_INLINE void session::commit() {
    core_->guarded([&] { core_->commit(); });
}
SKEIN_INLINE void session::complete() {
    core_->guarded([&] { core_->complete(); });
}
SKEIN_INLINE void session::redo() {
    core_->guarded([&] { core_->redo(); });
}
SKEIN_INLINE void session::abort(const error& why) noexcept { core_->abort(why); }
SKEIN_INLINE void session::rebind() {
    core_->guarded([&] { core_->rebind(); });
}
SKEIN_INLINE fit_result session::finish() {
    return core_->guarded([&] { return core_->finish(); });
}
SKEIN_INLINE fit_result session::run(const detail::batch_loss& loss) {
    return core_->guarded([&] { return core_->run(loss); });
}

} // namespace skein::train

// ======== skein/train/single.hpp
// The strategy for one process: no communication at all. Also the oracle of every other strategy.
//
//     Trainer<Single> trainer(ctx, config);
//     Trainer<basic_single<precision<bf16>>> half(ctx, config);


#include <string_view>

namespace skein {

namespace train::detail {

class single_process {
public:
    /// Throws errc::usage in a world of several ranks.
    single_process(const context& ctx, torch::nn::Module& module, const precision_policy& policy);
    single_process(const single_process&) = delete;
    single_process& operator=(const single_process&) = delete;
    ~single_process();

    [[nodiscard]] flat_store& store() noexcept { return store_; }
    void begin_step() { store_.expect_gradients(); }
    void begin_micro(bool /*last*/) noexcept {}
    void finish_backward();
    [[nodiscard]] double squared_norm(double mine) const noexcept { return mine; }
    void publish() { store_.cast_owned(); }
    void sync_buffers();
    void begin_evaluation() { store_.require_taken(); }
    void end_evaluation() noexcept {}
    void abort(const error& /*why*/) noexcept {}
    void finish();
    /// Throws errc::usage when the context has several ranks now.
    void rebind() const;

private:
    void show_masters();

    const context* ctx_;
    torch::nn::Module* module_;
    flat_store store_;
};

} // namespace train::detail

/// Trains in this process alone.
template <train::precision_setting... Settings>
class basic_single : public train::detail::single_process {
public:
    static constexpr std::string_view name = "Single";
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    basic_single(const train::context& ctx, torch::nn::Module& module)
        : single_process(ctx, module, used_precision()) {}
};

/// One process that computes and sums in float32.
using Single = basic_single<>;

static_assert(train::strategy<Single>);

} // namespace skein


// ======== skein/train/detail/single.ipp
// Bodies of <skein/train/single.hpp>.


#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE single_process::single_process(const context& ctx, torch::nn::Module& module,
                                            const precision_policy& policy)
    : ctx_(&ctx), module_(&module), store_(module, {.precision = policy}) {
    rebind();
    cast_inputs(module, store_, /*on=*/true);
}

SKEIN_INLINE single_process::~single_process() { show_masters(); }

SKEIN_INLINE void single_process::finish_backward() {
    store_.settle_gradients();
    store_.take_writes();
    if (store_.keeps_own_grads())
        for (const auto& u : store_.units()) store_.take_gradients(u, /*add=*/false);
}

SKEIN_INLINE void single_process::rebind() const {
    if (ctx_->world_size() == 1) return;
    throw error(errc::usage,
                fmt::format("strategy Single in a world of {} workers", ctx_->world_size()))
        .with_hint("use Trainer<DDP<>>, or one worker");
}

SKEIN_INLINE void single_process::sync_buffers() {
    store_.require_taken();
    store_.take_writes();
}

SKEIN_INLINE void single_process::finish() {
    store_.require_taken();
    store_.take_writes();
    show_masters();
}

SKEIN_INLINE void single_process::show_masters() {
    if (!store_.is_mixed()) return;
    cast_inputs(*module_, store_, /*on=*/false);
    store_.show_masters(/*whole=*/true);
}

} // namespace skein::train::detail

// ======== skein/train/trainer.hpp
// The training loop: the same for one process and many, and the only place that knows all parts.
//
// Model, loss and data are the user's and know nothing of the strategy. The trainer deals samples
// to ranks, weights every loss by its share of the global batch (so uneven shares are exact),
// clips, steps, merges metrics, evaluates, saves, resumes, and writes what a person wants to see.
//
//     skein::Trainer<skein::DDP<>> trainer(ctx, config);
//     auto result = trainer.fit(model, skein::AdamW{}, schedule, loss, data, held_out);
//
// Same seed and world size: the same bits, also when a run was interrupted and resumed.


#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace skein::train {

/// What fit() trains: a TORCH_MODULE holder or a pointer to a module.
template <class M>
concept module_holder = requires(M& model) {
    { *model } -> std::convertible_to<torch::nn::Module&>;
};

} // namespace skein::train


// ======== skein/train/detail/fit_parts.hpp
// Strategy, module and callbacks of one session behind detail/session_seam.hpp's virtual calls.
// Included by train/trainer.hpp only.

namespace skein::train::detail {

/// "DDP" of a strategy that says so.
template <class Strategy>
[[nodiscard]] std::string strategy_name_of() {
    if constexpr (requires { std::string(Strategy::name); })
        return std::string(Strategy::name);
    else
        return {};
}

/// What the strategy computes in; float32 for one that does not say.
template <class Strategy>
[[nodiscard]] precision_policy precision_used_by() {
    if constexpr (requires { Strategy::used_precision(); })
        return Strategy::used_precision();
    else
        return {};
}

template <class Strategy, class Callbacks>
class parts_of final : public session_parts {
public:
    parts_of(context& ctx, torch::nn::Module& module, Callbacks& callbacks)
        : module_(module), callbacks_(callbacks), strategy_(ctx, module) {}

    torch::nn::Module& module() override { return module_; }
    std::string strategy_name() const override { return strategy_name_of<Strategy>(); }
    precision_policy precision() const override { return precision_used_by<Strategy>(); }
    flat_store& store() override { return strategy_.store(); }
    void begin_step() override { strategy_.begin_step(); }
    void begin_micro(bool last) override { strategy_.begin_micro(last); }
    void finish_backward() override { strategy_.finish_backward(); }
    double squared_norm(double mine) override { return strategy_.squared_norm(mine); }
    void publish() override { strategy_.publish(); }
    void sync_buffers() override { strategy_.sync_buffers(); }
    void begin_evaluation() override { strategy_.begin_evaluation(); }
    void end_evaluation() override { strategy_.end_evaluation(); }
    void abort(const error& why) noexcept override { strategy_.abort(why); }
    void finish() override { strategy_.finish(); }
    void rebind() override { strategy_.rebind(); }

    void tell(const start_info& event) override { tell_all(event); }
    action tell(const step_info& event) override { return ask_all(event); }
    action tell(const eval_info& event) override { return ask_all(event); }
    void tell(const checkpoint_info& event) override { tell_all(event); }
    void tell(const fit_result& event) override { tell_all(event); }

    std::string stop_reason() const override {
        std::string reason;
        each([&](const auto& c) {
            if constexpr (requires { std::string(c.stop_reason()); })
                if (reason.empty()) reason = std::string(c.stop_reason());
        });
        return reason;
    }
    std::vector<callback_state> states() const override {
        std::vector<callback_state> all;
        each([&](const auto& c) {
            using type = std::remove_cvref_t<decltype(c)>;
            if constexpr (keeps_state<type>) all.push_back({type_name(typeid(type)), c.state()});
        });
        return all;
    }
    void restore(const callback_state& saved) override {
        each([&](auto& c) {
            using type = std::remove_cvref_t<decltype(c)>;
            if constexpr (keeps_state<type>)
                if (type_name(typeid(type)) == saved.name) c.restore(saved.state);
        });
    }

private:
    template <class Call>
    void each(Call call) const {
        std::apply([&](auto&... c) { (call(c), ...); }, callbacks_);
    }
    template <class Event>
    void tell_all(const Event& event) {
        each([&](auto& c) { detail::tell(c, event); });
    }
    template <class Event>
    action ask_all(const Event& event) {
        auto wanted = action::go_on;
        each([&](auto& c) {
            if (detail::tell(c, event) == action::stop) wanted = action::stop;
        });
        return wanted;
    }

    torch::nn::Module& module_;
    Callbacks& callbacks_;
    Strategy strategy_;
};

// ---- calls of fit() that cannot be meant --------------------------------------------------------

template <class T>
concept optimizer_argument = std::convertible_to<T, optimizer_options>;
template <class T>
concept schedule_argument = std::convertible_to<T, schedule>;
/// torch::data has get() or get_batch(), and a size that may be unknown.
template <class T>
concept torch_data = requires(T& data) { data.get_batch(std::vector<std::size_t>{}); } ||
                     requires(T& data) { data.get(std::size_t{}); };

template <class... Args>
struct fit_call {
    static constexpr bool right = false;
};
template <class Model, class Optimizer, class Schedule, class Loss, class Data, class HeldOut>
struct fit_call<Model, Optimizer, Schedule, Loss, Data, HeldOut> {
    static constexpr bool right = std::is_lvalue_reference_v<Model> &&
                                  optimizer_argument<Optimizer> && schedule_argument<Schedule> &&
                                  train_input<std::remove_reference_t<Data>> &&
                                  data_source<std::remove_cvref_t<HeldOut>>;
};
template <class... Args>
concept well_formed_fit = fit_call<Args&&...>::right;

#define SKEIN_FIT_IS "it is fit(model, optimizer, schedule, loss, data, held_out): "

/// The first thing that is wrong, from left to right.
template <class... Args>
consteval void explain_fit() {
    using all = std::tuple<Args&&..., void, void, void, void, void, void>;
    using model = std::tuple_element_t<0, all>;
    using optimizer = std::tuple_element_t<1, all>;
    using schedule_ = std::tuple_element_t<2, all>;
    using data = std::tuple_element_t<4, all>;
    using held_out = std::tuple_element_t<5, all>;
    constexpr auto count = sizeof...(Args);
    if constexpr (count < 1 || !std::is_lvalue_reference_v<model>)
        static_assert(count > 99,
                      SKEIN_FIT_IS "the model must be a variable, it is trained in place");
    else if constexpr (count < 2 || !optimizer_argument<optimizer>)
        static_assert(
            count > 99, SKEIN_FIT_IS
            "the second argument must be an optimizer, e.g. skein::AdamW{.weight_decay = 0.1}");
    else if constexpr (count < 3 || !schedule_argument<schedule_>)
        static_assert(
            count > 99, SKEIN_FIT_IS
            "the third argument must be a schedule of the learning rate, a function of the "
            "step, e.g. skein::train::constant_rate{1e-3}; the loss comes behind it");
    else if constexpr (count < 5)
        static_assert(count > 99, SKEIN_FIT_IS "loss and data are missing");
    else if constexpr (torch_data<std::remove_cvref_t<data>> &&
                       !train_input<std::remove_reference_t<data>>)
        static_assert(
            count > 99, SKEIN_FIT_IS
            "a dataset of torch::data is no data here: wrap it in a struct with size() and "
            "batch(std::span<const std::uint64_t> ids), see skein/train/input.hpp");
    else if constexpr (!train_input<std::remove_reference_t<data>>)
        static_assert(
            count > 99, SKEIN_FIT_IS
            "the data must have size() and batch(std::span<const std::uint64_t> ids), or be "
            "a stream with next(), state() and restore(); see skein/train/input.hpp");
    else if constexpr (count < 6 || !data_source<std::remove_cvref_t<held_out>>)
        static_assert(count > 99, SKEIN_FIT_IS
                      "held_out must have size() and batch(ids) as well; its size may be 0");
    else
        static_assert(count > 99, SKEIN_FIT_IS "there are no more arguments");
}

#undef SKEIN_FIT_IS

} // namespace skein::train::detail


// ======== skein/train/trainer.hpp, continued
namespace skein {

/// Trains a module under a strategy. One fit() at a time; all ranks call fit() alike.
template <class Strategy, class... Callbacks>
    requires train::strategy<Strategy>
class Trainer {
    static_assert((train::callback<Callbacks> && ...),
                  "a callback needs one of on_start, on_step, on_eval, on_checkpoint and on_end");

public:
    /// Throws errc::usage when the configuration makes no sense for this world.
    Trainer(train::context& ctx, train::run_config config, Callbacks... callbacks)
        : ctx_(&ctx), config_(std::move(config)), callbacks_(std::move(callbacks)...) {
        train::detail::begin_training(ctx, config_);
        if (const auto text = train::describe(train::detail::precision_used_by<Strategy>());
            !text.empty())
            config_.precision = text;
    }

    /// What make() returns, a model that may be too large for one rank: under FSDP and Hybrid every
    /// block (skein::unit) is cut up as soon as it is built, and each rank keeps the rows that it
    /// owns. See train/build.hpp. Collective; seed the generator alike on every rank before.
    ///   errors  mismatch when ranks drew different values
    template <class Make>
    [[nodiscard]] auto build(Make make) {
        return train::build_for<Strategy>(*ctx_, std::move(make));
    }

    /// More settings for the run's config.json: model sizes and the like.
    void describe(report::settings settings) { settings_ = std::move(settings); }

    /// A number of this rank for the row of the step that is running (from a callback: of the next
    /// step), merged over ranks by its kind. A rank may leave a name out: it counts for those that
    /// report it. A mean without a weight counts, in a loss or beside a micro-batch in hand, that
    /// batch's samples; elsewhere
    /// 1. The trainer's own names ("loss", "lr", "grad_norm", "val_loss", "step", ...) are refused:
    ///   errc::usage.
    void report(report::metric_kind kind, std::string_view name, double value,
                std::optional<double> weight = {}) {
        reported_.add(kind, name, value, weight);
    }

    /// Runs until config.max_steps or config.epochs, a stop request or an error.
    ///   model     a module holder or pointer; its parameters move into a flat store for good. One
    ///             that is in eval mode as a whole is put into training mode; submodules that are
    ///             in eval mode by themselves stay there
    ///   data      samples by number, or a stream (train/input.hpp)
    ///   held_out  the evaluation set; its size may be 0
    ///   errors    usage, not_finite (with step, rank and a way out), mismatch (also of settings
    ///             and data between the ranks), disk errors, and the transport's. What model, loss
    ///             or data throw leaves as invalid_argument with rank, step and type, and is not
    ///             tried again: the same step would throw again. What the system refused
    ///             (std::system_error, std::bad_alloc) is tried again as io and exhausted, and a
    ///             skein::error keeps its code. The other ranks are told before an error leaves
    template <class Model, class Loss, train::train_input Data, train::data_source HeldOut>
    train::fit_result fit(Model& model, train::optimizer_options options, train::schedule schedule,
                          Loss loss, Data&& data, const HeldOut& held_out) {
        require_holder<Model>();
        if constexpr (train::module_holder<Model>) { // else the line above is all there is to say
            using batch = train::batch_of<Data>;
            train::detail::require_loss<Loss, Model, batch>();
            auto session = open(model, std::move(options), std::move(schedule));
            session.evaluate_on(model, loss, held_out);
            if constexpr (train::detail::loss_is_weighted<Loss, Model, batch>())
                session.expect_weights();
            session.begin(train::detail::make_input(data));
            return session.run([&](const void* made, report::metric_set& metrics) {
                return train::detail::call_loss(loss, model, *static_cast<const batch*>(made),
                                                metrics);
            });
        }
    }

    /// Every other call: says at compile time what is wrong with it.
    template <class... Args>
        requires(!train::detail::well_formed_fit<Args...>)
    train::fit_result fit(Args&&...) {
        train::detail::explain_fit<Args...>();
        return {};
    }

    /// The same for a loop of your own: see train/session.hpp. Trainer and model must outlive the
    /// session.
    template <class Model>
    [[nodiscard]] train::session open(Model& model, train::optimizer_options options,
                                      train::schedule schedule) {
        require_holder<Model>();
        using parts = train::detail::parts_of<Strategy, std::tuple<Callbacks...>>;
        const train::session_request request{.ctx = ctx_,
                                             .config = &config_,
                                             .described = &settings_,
                                             .reported = &reported_,
                                             .options = std::move(options),
                                             .rate = std::move(schedule)};
        return train::session(request, [&] {
            train::detail::refuse_too_large(train::detail::strategy_name_of<Strategy>(), *model,
                                            *ctx_, config_, request.options,
                                            train::detail::precision_used_by<Strategy>());
            return std::make_unique<parts>(*ctx_, *model, callbacks_);
        });
    }

    [[nodiscard]] const train::run_config& config() const noexcept { return config_; }
    [[nodiscard]] train::context& ctx() noexcept { return *ctx_; }
    template <class C>
    [[nodiscard]] C& callback() noexcept {
        return std::get<C>(callbacks_);
    }

private:
    template <class Model>
    static consteval void require_holder() {
        static_assert(train::module_holder<Model>,
                      "fit() takes a module holder (TORCH_MODULE) or a std::shared_ptr to the "
                      "module, not the module itself");
    }

    train::context* ctx_;
    train::run_config config_;
    std::tuple<Callbacks...> callbacks_;
    report::settings settings_;
    report::metric_set reported_{train::detail::taken_names};
};

} // namespace skein

// ======== skein/train/weights.hpp
// A trained model's weights alone, for using it: no trainer, no optimizer state.
//
//     Net net;
//     skein::train::load_weights(*net, "runs/net");    // the newest whole checkpoint of that run
//     net->eval();


#include <cstdint>
#include <string>
#include <vector>

namespace skein::train {

/// How a checkpoint's tensors must fit the module, and which of its weights are wanted.
struct weights_options {
    bool strict = true; ///< refuse a checkpoint with tensors that the module has not
    /// The averages of the weights in place of the weights; not_found when the run kept none.
    bool average = false;
};

/// What load_weights read.
struct loaded_weights {
    std::string path;       ///< the checkpoint
    std::uint64_t step = 0; ///< finished optimizer steps
    /// Why newer checkpoints of the run were passed over; each is also a warning in the log.
    std::vector<std::string> passed_over{};
};

/// Opens a run folder's newest whole checkpoint, or the checkpoint folder itself; every byte is
/// verified, nothing is changed on disk. Damaged newer ones are passed over with a warning in the
/// log.
///   passed_over  when given, gets a line per checkpoint that was
///   errors  not_found, or the newest one's corrupt or malformed when none is whole
[[nodiscard]] loaded_checkpoint open_checkpoint(disk& where, const std::string& path,
                                                std::vector<std::string>* passed_over = nullptr);

/// Fills the module's parameters and buffers from a checkpoint, whichever number of workers wrote
/// it.
///   path    a run's folder or a checkpoint's
///   errors  those of open_checkpoint; mismatch names tensors that the module has not (unless
///           strict is false); not_found and mismatch name a tensor that is missing or of another
///           shape: then the module may hold some of the new values
loaded_weights load_weights(torch::nn::Module& module, const std::string& path,
                            weights_options options = {});

} // namespace skein::train


// ======== skein/train/detail/weights.ipp
// Bodies of <skein/train/weights.hpp>.


#include <ranges>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE loaded_checkpoint open_checkpoint(disk& where, const std::string& path,
                                               std::vector<std::string>* passed_over) {
    if (where.status(path + "/manifest.json")) return checkpointer::open(where, path).value();
    std::vector<std::pair<std::uint64_t, error>> refused;
    const checkpointer run(where, path + "/checkpoints");
    for (const std::uint64_t step : std::views::reverse(run.steps())) {
        auto opened = checkpointer::open(where, run.step_path(step));
        if (!opened) {
            refused.emplace_back(step, opened.error());
            continue;
        }
        for (const auto& [damaged, why] : refused) {
            auto line = fmt::format("checkpoint of step {} is passed over for that of step {}: {}",
                                    damaged, step, why.what());
            logging::warn("weights", line);
            if (passed_over != nullptr) passed_over->push_back(std::move(line));
        }
        return std::move(*opened);
    }
    if (!refused.empty()) throw refused.front().second;
    throw error(errc::not_found, fmt::format("there is no checkpoint in {}", path))
        .with_hint("give a run's folder, such as runs/gpt, or one of its checkpoints/step-...");
}

namespace detail {

/// The tensors that a checkpoint of this module has, each once, in order of registration.
SKEIN_INLINE std::vector<std::pair<std::string, at::Tensor>> saved_tensors(
    torch::nn::Module& module) {
    std::vector<std::pair<std::string, at::Tensor>> all;
    std::unordered_set<const void*> seen; // a tied parameter is saved under its first name
    for (const auto& item : module.named_parameters(true))
        if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
            all.emplace_back("model." + item.key(), item.value());
    for (const auto& item : module.named_buffers(true))
        if (item.value().defined()) all.emplace_back("model." + item.key(), item.value());
    return all;
}

/// The name under which the average of a weight is saved; that of the weight itself for what is not
/// trained, such as buffers.
SKEIN_INLINE std::string average_name(const loaded_checkpoint& from, const std::string& name) {
    auto averaged = "optim.ema." + name.substr(std::string_view("model.").size());
    return from.contains(averaged) ? averaged : name;
}

SKEIN_INLINE void require_average(const loaded_checkpoint& from) {
    for (const auto& [name, info] : from.tensors())
        if (name.starts_with("optim.ema.")) return;
    throw error(errc::not_found, "the checkpoint has no averages of the weights")
        .with_where(from.path())
        .with_hint("train with {.average = average_options{}}, or load the weights themselves");
}

/// Throws when the checkpoint has weights that the module has not.
SKEIN_INLINE void refuse_additional(const loaded_checkpoint& from,
                                    const std::vector<std::pair<std::string, at::Tensor>>& wanted) {
    std::unordered_set<std::string> known;
    for (const auto& [name, tensor] : wanted) known.insert(name);
    std::string names;
    std::size_t count = 0;
    for (const auto& [name, info] : from.tensors())
        if (name.starts_with("model.") && !known.contains(name) && ++count <= 5)
            names += (names.empty() ? "" : ", ") + name.substr(6);
    if (count == 0) return;
    throw error(errc::mismatch,
                fmt::format("the checkpoint has {} tensor{} that the model has not: {}{}", count,
                            count == 1 ? "" : "s", names, count > 5 ? ", ..." : ""))
        .with_where(from.path())
        .with_hint("build the model as it was trained, or load with strict = false");
}

} // namespace detail

SKEIN_INLINE loaded_weights load_weights(torch::nn::Module& module, const std::string& path,
                                         weights_options options) {
    at::NoGradGuard no_grad;
    posix_disk here;
    loaded_weights out;
    const auto from = open_checkpoint(here, path, &out.passed_over);
    const auto wanted = detail::saved_tensors(module);
    for (const auto& [name, tensor] : wanted)
        if (!from.contains(name)) (void)from.read(name); // not_found, by name
    if (options.strict) detail::refuse_additional(from, wanted);
    if (options.average) detail::require_average(from);
    for (const auto& [name, tensor] : wanted) {
        auto whole = tensor.detach().contiguous();
        from.read(options.average ? detail::average_name(from, name) : name,
                  safetensors_dtype(whole), whole.sizes().vec(), bytes_of(whole));
        if (whole.data_ptr() != tensor.data_ptr()) at::Tensor(tensor).copy_(whole);
    }
    out.path = from.path();
    out.step = from.step();
    return out;
}

} // namespace skein::train

// ======== skein/train/zero.hpp
// ZeRO stages 1 and 2: data parallel training in which every rank updates a part of the parameters.
//
// The gradients of a unit are reduced so that each rank gets the sum of its own part only; it
// updates that part and hands it to the others. On one host the parameters are one memory for all
// ranks, and nothing has to be handed over.
//
//     Trainer<Zero1<>> trainer(ctx, config);           // optimizer states cut between the ranks
//     Trainer<Zero2<>> trainer(ctx, config);           // and the gradients
//
//   source: Rajbhandari et al. 2020 (arXiv 1910.02054)


#include <string_view>

namespace skein {

/// Optimizer states are sharded; parameters and gradients are whole on every rank.
///   memory with AdamW in float32: 8 P + 8 P / N bytes per rank (parameters once per host)
///   cost   that of DDP: a reduce-scatter of the gradients and an all-gather of the parameters
///   errors those of DDP
template <class Wrap = bucket<>, train::precision_setting... Settings>
    requires wrap_policy<Wrap>
class Zero1 : public train::detail::sharded_parallel {
public:
    static constexpr std::string_view name = "Zero1";
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    Zero1(const train::context& ctx, torch::nn::Module& module)
        : sharded_parallel(ctx, module,
                           {.name = name, .shard_states = true, .precision = used_precision()},
                           train::detail::plan_of<Wrap>()) {}
};

/// Optimizer states and gradients are sharded; parameters are whole on every rank. After a backward
/// pass parameters have no .grad: store().own_grads() has what this rank owns.
///   memory with AdamW in float32: 4 P + 12 P / N bytes per rank, and two units of gradients
///   cost   that of DDP, the gradients' part once per micro-batch
///   errors those of DDP
template <class Wrap = bucket<>, train::precision_setting... Settings>
    requires wrap_policy<Wrap>
class Zero2 : public train::detail::sharded_parallel {
public:
    static constexpr std::string_view name = "Zero2";
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    Zero2(const train::context& ctx, torch::nn::Module& module)
        : sharded_parallel(ctx, module,
                           {.name = name,
                            .shard_states = true,
                            .shard_gradients = true,
                            .precision = used_precision()},
                           train::detail::plan_of<Wrap>()) {}
};

static_assert(train::strategy<Zero1<>> && train::strategy<Zero2<>>);

} // namespace skein
#undef SKEIN_AMALGAMATED
