// SPDX-License-Identifier: Apache-2.0
#pragma once
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

#include <skein/torch/torch.hpp>
#include <skein/train/precision.hpp>
#include <skein/train/shard_layout.hpp>

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
/// memory when they are first touched. On a device: from LibTorch's allocator for it.
[[nodiscard]] at::Tensor make_flat_buffer(std::int64_t elements, at::ScalarType type = at::kFloat,
                                          at::Device where = at::kCPU);

/// Lets the heap keep what a step frees, for the next step to take: training allocates the same
/// large blocks again and again, and giving them back to the system costs a page fault per 4 KiB
/// each time (measured: 4 % of a step of the GPT example). For the whole process; glibc only.
void keep_freed_memory() noexcept;

/// The sum of the squares, in double and in an order that does not depend on the number of threads.
///   parts  float32, contiguous, on one device; all but the last a multiple of flat_alignment long.
///          How one long row of numbers is cut into parts makes no difference to the bits on the
///          CPU; on a device LibTorch's kernels add them, in double, in an order of their own, and
///          one number comes to the host
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
class gradient_watch;
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
    /// Before a backward pass whose gradients are its own, and not those of the passes before with
    /// more added as it comes. What is in place was settled.
    ///   adds  once complete, they are added to what is in place; else they take its place
    ///   errors  not_supported, by name, from an adding pass that is not done with a gradient when it
    ///           says so
    void begin_pass(bool adds);
    /// From now on it sees each gradient of each pass on its way into place; null: nobody does.
    void watch(detail::gradient_watch* by) noexcept { pass_.watch = by; }
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
    [[nodiscard]] bool is_settled(const flat_segment& s) const;
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
    struct pass_type {
        bool adds = false; // see begin_pass()
        detail::gradient_watch* watch = nullptr;
    };
    pass_type pass_;
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

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/flat.ipp>
#endif
