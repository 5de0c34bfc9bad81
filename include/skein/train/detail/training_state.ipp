// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/training_state.hpp>.

#include <skein/core/check.hpp>
#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/detail/taken_module.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

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
SKEIN_INLINE error missing_extra(const std::string& where, const char* what) {
    return error(errc::malformed, fmt::format("the checkpoint has no '{}'", what))
        .with_where(where);
}

/// Of a tensor on a device: an address that nobody reads, and how many bytes there are.
SKEIN_INLINE byte_span size_of(const at::Tensor& tensor) {
    return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// What is on a device, without gaps. Waits for what is computed there, and for the copy.
SKEIN_INLINE void copy_to_host(const at::Tensor& from, mut_byte_span to) {
    if (to.empty()) return;
    const at::NoGradGuard no_grad;
    at::from_blob(to.data(), from.sizes(), from.options().device(at::kCPU)).copy_(from);
}

/// Memory of the host for all of its elements: its own where that is dense and there.
SKEIN_INLINE at::Tensor room_on_host(const at::Tensor& like) {
    if (like.device().is_cpu()) return like.contiguous();
    return at::empty(like.sizes(), like.options().device(at::kCPU));
}

/// Bytes that some ranks have, to those that have not: equal parts from each that has them.
SKEIN_INLINE void spread_bytes(const context& ctx, mut_byte_span bytes,
                               const std::vector<bool>& has_them) {
    if (ctx.comm() == nullptr || bytes.empty()) return;
    const auto givers = static_cast<std::size_t>(std::ranges::count(has_them, true));
    if (givers == has_them.size()) return;
    std::vector<std::size_t> counts(has_them.size(), 0);
    std::size_t begin = 0, mine = 0, given = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
        if (!has_them[r]) continue;
        const auto end = bytes.size() * ++given / givers;
        counts[r] = end - begin;
        if (r == static_cast<std::size_t>(ctx.rank())) mine = begin;
        begin = end;
    }
    const auto count = counts[static_cast<std::size_t>(ctx.rank())];
    const dist::buffer_view part{bytes.data() + mine, count, dist::dtype::u8};
    const dist::buffer_view whole{bytes.data(), bytes.size(), dist::dtype::u8};
    ctx.comm()->all_gather_v(part, whole, std::move(counts)).wait();
}
} // namespace detail

namespace detail {
/// "Float [2, 3]"
SKEIN_INLINE std::string type_and_shape(const at::Tensor& tensor) {
    return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                       fmt::join(tensor.sizes(), ", "));
}
} // namespace detail

SKEIN_INLINE training_state::training_state(flat_store& store, flat_optimizer& optimizer,
                                            sampler* order)
    : store_(&store), optimizer_(&optimizer), order_(order) {
    for (const auto& f : store.fixed()) fixed_.push_back(detail::type_and_shape(f.tensor));
}

SKEIN_INLINE void training_state::require_readable() const {
    for (std::size_t i = 0; i < fixed_.size(); ++i) {
        const auto& f = store_->fixed()[i];
        detail::refuse_shared_elements(f.name, f.tensor);
        if (const auto now = detail::type_and_shape(f.tensor); now != fixed_[i])
            throw error(errc::not_supported,
                        fmt::format("not supported: a checkpoint of {}, which is {} and was {} "
                                    "when the run began: a run that goes on could not read it",
                                    f.name, now, fixed_[i]))
                .with_hint("give it its largest shape from the beginning, or keep it outside of "
                           "the model");
    }
}

SKEIN_INLINE std::string training_state::config_hash() const {
    return fmt::format("{:016x}-{}", store_->layout_hash(), optimizer_->name());
}

SKEIN_INLINE checkpoint_state training_state::save(std::uint64_t step, std::uint64_t seed,
                                                   const std::map<std::string, double>& more,
                                                   const std::string& also) {
    checkpoint_state state;
    state.step = step;
    state.config_hash = config_hash();
    require_readable();
    held_.clear();
    for (auto& t : tensors()) {
        const bool on_host = t.rows.device().is_cpu();
        const bool writes = t.everywhere || !store_->is_saved_elsewhere();
        byte_span bytes;
        std::function<void(mut_byte_span)> fetch; // also where another rank writes: all say alike
        if (on_host) {
            held_.push_back(t.rows.contiguous());
            bytes = bytes_of(held_.back());
        } else {
            bytes = detail::size_of(t.rows);
            fetch = [rows = t.rows](mut_byte_span to) { detail::copy_to_host(rows, to); };
        }
        state.tensors.push_back({.name = std::move(t.name),
                                 .dtype = safetensors_dtype(t.rows),
                                 .shape = std::move(t.shape),
                                 .bytes = writes ? bytes : byte_span{},
                                 .first_row = writes ? t.first_row : 0,
                                 .rows = t.everywhere ? tensor_part::whole
                                         : writes     ? t.count
                                                      : 0,
                                 .everywhere = t.everywhere,
                                 .fetch = std::move(fetch)});
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
    adopt(from.extra(), from.path());
    bool has_average = true;
    for (auto& t : tensors()) {
        if (t.name.starts_with("optim.ema.") && !from.contains(t.name)) { // it had none until now
            has_average = false;
            continue;
        }
        auto rows = detail::room_on_host(t.rows);
        from.read(t.name, safetensors_dtype(rows), t.shape, t.first_row, t.count, bytes_of(rows));
        if (rows.data_ptr() != t.rows.data_ptr()) t.rows.copy_(rows);
    }
    store_->cast_fixed();
    if (!has_average) optimizer_->average()->restart();
}

SKEIN_INLINE void training_state::adopt(const std::string& text, const std::string& where) {
    const json extra =
        parse_json(std::string_view(text), {.max_bytes = 256u << 20, .max_depth = 64}).value();
    if (!extra.contains("optimizer")) throw detail::missing_extra(where, "optimizer");
    restore_place(text, where);
    optimizer_->set_steps(json_uint(extra.at("optimizer"), "steps").value());
    restore_left_out(extra.at("optimizer").value("left_out", json::object()).dump());
}

SKEIN_INLINE std::uint64_t training_state::copy(const context& ctx,
                                                const std::vector<bool>& has_state) {
    if (store_->is_sharded())
        throw error(errc::not_supported, "not supported: a copy of parts from other ranks' memory");
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> all{store_->params_P()};
    for (const auto& [name, state] : optimizer_->states()) all.push_back(state);
    for (const auto& f : store_->fixed()) all.push_back(f.tensor.detach());
    const bool takes = !has_state[static_cast<std::size_t>(ctx.rank())];
    std::uint64_t bytes = 0;
    std::uint32_t sum = 0;
    for (auto& tensor : all) {
        auto flat = tensor.contiguous();
        detail::spread_bytes(ctx, bytes_of(flat), has_state);
        sum = crc32c(bytes_of(flat), sum);
        if (!takes) continue;
        bytes += flat.nbytes();
        if (flat.data_ptr() != tensor.data_ptr()) tensor.copy_(flat);
    }
    require_same(ctx, sum, "the state that was copied");
    if (!takes) return 0;
    if (store_->is_mixed()) store_->cast_all();
    store_->cast_fixed();
    return bytes;
}

SKEIN_INLINE void training_state::restore_place(const std::string& text, const std::string& where) {
    const json extra =
        parse_json(std::string_view(text), {.max_bytes = 256u << 20, .max_depth = 64}).value();
    const auto refuse = [&](std::string what, const char* same) {
        throw error(errc::mismatch, std::move(what))
            .with_where(where)
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
    if (!extra.contains("sampler")) throw detail::missing_extra(where, "sampler");
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
