// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/tensor_message.hpp>.

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::wire::detail {

/// Types by their number in a message; 0 is no tensor.
inline constexpr std::array tensor_types{
    at::kBool, at::kByte,     at::kChar,  at::kShort,  at::kInt,          at::kLong,
    at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};
inline constexpr std::size_t tensor_alignment = 64, most_dimensions = 64;

[[noreturn]] inline void refuse_tensor(const char* what, const char* hint) {
    throw error(errc::not_supported, fmt::format("not supported: {} as a message", what))
        .with_hint(hint);
}

/// What stands before the elements.
struct tensor_head {
    at::ScalarType type = at::kFloat;
    std::vector<std::int64_t> sizes;
    std::size_t bytes = 0;
    bool is_defined = false;
};

/// Reads up to the first element.
inline bool read_tensor_head(reader& from, tensor_head& head) {
    std::uint8_t number = 0;
    if (!from.fixed(number)) return false;
    if (number == 0) return true;
    if (number > tensor_types.size())
        return from.fail(errc::malformed, fmt::format("a tensor of the unknown type {}", number));
    head.is_defined = true;
    head.type = tensor_types[number - 1];
    std::uint64_t dimensions = 0;
    if (!from.varint(dimensions)) return false;
    if (dimensions > most_dimensions)
        return from.fail(errc::malformed, fmt::format("a tensor of {} dimensions", dimensions));
    // Sizes of which one is zero say nothing of the others: their product is checked without it.
    constexpr auto most = std::uint64_t(std::numeric_limits<std::int64_t>::max());
    std::uint64_t product = at::elementSize(head.type);
    bool is_empty = false;
    for (std::uint64_t i = 0; i < dimensions; ++i) {
        std::uint64_t size = 0;
        if (!from.varint(size)) return false;
        if (size > most || (size != 0 && product > most / size))
            return from.fail(errc::malformed, "a tensor with too many elements");
        is_empty = is_empty || size == 0;
        product *= std::max<std::uint64_t>(size, 1);
        head.sizes.push_back(std::int64_t(size));
    }
    head.bytes = is_empty ? 0 : std::size_t(product);
    // How much is said: where a message begins in the bytes that its reader has is not known here.
    std::uint8_t zeros = 0;
    byte_span padding;
    if (!from.fixed(zeros) || !from.raw(zeros, padding)) return false;
    if (zeros >= tensor_alignment ||
        std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; }))
        return from.fail(errc::malformed, "a tensor with padding that is none");
    return true;
}

/// The head, and a view of the elements.
inline bool read_tensor(reader& from, tensor_head& head, byte_span& elements) {
    if (!read_tensor_head(from, head) || !from.raw(head.bytes, elements)) return false;
    const auto is_bool = [](std::byte b) { return b <= std::byte{1}; };
    if (head.type == at::kBool && !std::all_of(elements.begin(), elements.end(), is_bool))
        return from.fail(errc::malformed, "a tensor of truth values with another one");
    return true;
}

} // namespace skein::wire::detail

namespace skein::wire {

SKEIN_INLINE void codec<at::Tensor>::encode(writer& to, const at::Tensor& tensor) {
    if (!tensor.defined()) return to.fixed(std::uint8_t{0});
    if (tensor.layout() != at::kStrided)
        detail::refuse_tensor("a tensor that is not dense", "to_dense()");
    if (!tensor.device().is_cpu())
        detail::refuse_tensor("a tensor on a device", "cpu(), and to(device) where it arrives");
    if (tensor.requires_grad())
        detail::refuse_tensor("a tensor that requires a gradient",
                              "detach(): its history does not travel");
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg())
        detail::refuse_tensor("a tensor that is not contiguous", "contiguous()");
    const auto& types = detail::tensor_types;
    const auto type = std::find(types.begin(), types.end(), tensor.scalar_type());
    if (type == types.end())
        detail::refuse_tensor("a tensor of this type", "to() one of those of tensor_message.hpp");
    to.fixed(std::uint8_t(type - types.begin() + 1));
    to.varint(std::uint64_t(tensor.dim()));
    for (const auto size : tensor.sizes()) to.varint(std::uint64_t(size));
    to.fixed(std::uint8_t((0 - (to.size() + 1)) % detail::tensor_alignment));
    to.align(detail::tensor_alignment);
    to.raw({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
}

SKEIN_INLINE result<void> codec<at::Tensor>::decode(reader& from, at::Tensor& into) {
    detail::tensor_head head;
    byte_span elements;
    if (!detail::read_tensor(from, head, elements)) return from.status();
    into = at::Tensor();
    if (!head.is_defined) return {};
    into = at::empty(head.sizes, at::TensorOptions(head.type));
    if (!elements.empty()) std::memcpy(into.mutable_data_ptr(), elements.data(), elements.size());
    return {};
}

SKEIN_INLINE result<at::Tensor> codec<at::Tensor>::in_place(byte_span message,
                                                            std::shared_ptr<const void> keep) {
    reader from(message);
    detail::tensor_head head;
    byte_span elements;
    if (!detail::read_tensor(from, head, elements) || !from.finish()) return from.status().error();
    if (!head.is_defined) return at::Tensor();
    if (reinterpret_cast<std::uintptr_t>(elements.data()) % at::elementSize(head.type) != 0) {
        const auto own = at::empty(head.sizes, at::TensorOptions(head.type));
        if (!elements.empty())
            std::memcpy(own.mutable_data_ptr(), elements.data(), elements.size());
        return own;
    }
    // Of memory that no one writes to; LibTorch has no word for that.
    return at::from_blob(
        const_cast<std::byte*>(elements.data()), // NOLINT
        head.sizes, [kept = std::move(keep)](void*) mutable { kept.reset(); },
        at::TensorOptions(head.type));
}

} // namespace skein::wire
