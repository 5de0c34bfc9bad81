// SPDX-License-Identifier: Apache-2.0
#include <skein/rt/view.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/tensor_message.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace tensor_messages {

using namespace skein;

bool same(const at::Tensor& a, const at::Tensor& b) {
    return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
           (a.numel() == 0 ||
            std::memcmp(a.const_data_ptr(), b.const_data_ptr(), std::size_t(a.nbytes())) == 0);
}

std::string refused(const at::Tensor& tensor) {
    try {
        (void)wire::encode(tensor);
    } catch (const error& e) {
        CHECK(e.code() == errc::not_supported);
        return e.text() + "; " + e.hint();
    }
    return "";
}

static_assert(rt::detail::storable<at::Tensor>);
static_assert(rt::detail::may_come_as_object<at::Tensor>());
static_assert(std::is_same_v<view<at::Tensor>::reads, const at::Tensor&>);

TEST_CASE("tensors of each type and shape travel with all their bits") {
    for (const auto type :
         {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
          at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble})
        for (const std::vector<std::int64_t>& shape :
             std::vector<std::vector<std::int64_t>>{{}, {0}, {7}, {3, 0, 2}, {2, 3, 5}}) {
            const auto tensor = (at::rand(shape) * 100).to(type);
            at::Tensor back;
            REQUIRE(wire::decode(wire::encode(tensor), back));
            CHECK(same(tensor, back));
        }
    at::Tensor none = at::ones({2});
    REQUIRE(wire::decode(wire::encode(at::Tensor()), none));
    CHECK(!none.defined());
    const std::vector<at::Tensor> several{at::rand({5}), at::arange(3), at::Tensor()};
    std::vector<at::Tensor> back;
    REQUIRE(wire::decode(wire::encode(several), back));
    REQUIRE(back.size() == 3);
    CHECK((same(back[0], several[0]) && same(back[1], several[1]) && !back[2].defined()));
}

TEST_CASE("what would travel as something else is refused, with what to call") {
    const auto whole = at::rand({4, 6});
    CHECK(refused(whole.t()).find("contiguous()") != std::string::npos);
    CHECK(refused(whole.slice(1, 0, 3)).find("contiguous()") != std::string::npos);
    CHECK(refused(at::conj(at::rand({3}).to(at::kComplexFloat))).find("contiguous()") !=
          std::string::npos);
    CHECK(refused(whole.to_sparse()).find("to_dense()") != std::string::npos);
    CHECK(refused(whole.clone().requires_grad_(true)).find("detach()") != std::string::npos);
    CHECK(refused(at::empty({2}, at::TensorOptions(at::kMeta))).find("cpu()") != std::string::npos);
    CHECK(refused(at::empty({2}, at::TensorOptions(at::kFloat8_e4m3fn))).find("type") !=
          std::string::npos);
    CHECK(refused(whole.slice(0, 1, 3)).empty()); // rows of another one, and contiguous
}

TEST_CASE("a tensor of a view lies over the bytes and keeps them") {
    const auto tensor = at::rand({33, 3});
    auto message = std::make_shared<byte_buffer>(wire::encode(tensor));
    const std::weak_ptr<byte_buffer> there = message;
    auto read = wire::codec<at::Tensor>::in_place(*message, message);
    REQUIRE(read);
    CHECK(same(*read, tensor));
    const auto* begin = static_cast<const std::byte*>(read->const_data_ptr());
    CHECK((begin >= message->data() && begin < message->data() + message->size()));
    CHECK((begin - message->data()) % 64 == 0);
    message.reset();
    const auto part = read->slice(0, 30, 33);
    *read = at::Tensor();
    CHECK(!there.expired());
    CHECK(same(part.contiguous(), tensor.slice(0, 30, 33)));
}

TEST_CASE("bytes that do not lie as their type asks for are copied") {
    const auto tensor = at::rand({9}).to(at::kDouble);
    const auto message = wire::encode(tensor);
    auto shifted = std::make_shared<byte_buffer>(1 + message.size());
    std::copy(message.begin(), message.end(), shifted->begin() + 1);
    auto read = wire::codec<at::Tensor>::in_place(byte_span(*shifted).subspan(1), shifted);
    REQUIRE(read);
    shifted->assign(shifted->size(), std::byte{0});
    CHECK(same(*read, tensor));
}

TEST_CASE("bytes that are no tensor are malformed") {
    const auto whole = wire::encode(at::rand({5, 2}));
    for (std::size_t cut = 0; cut < whole.size(); ++cut) {
        const byte_buffer part(whole.begin(), whole.begin() + std::ptrdiff_t(cut));
        at::Tensor into;
        const auto read = wire::decode(part, into);
        REQUIRE(!read);
        CHECK(read.error().code() == errc::malformed);
        CHECK(!wire::codec<at::Tensor>::in_place(part, nullptr));
    }
    for (unsigned first = 0; first < 256; ++first)
        for (const unsigned dimensions : {0u, 1u, 3u, 64u, 65u, 255u}) {
            byte_buffer some(80, std::byte{0xff}); // sizes of 2^64 - 1 and what is no number
            some[0] = std::byte(first);
            some[1] = std::byte(dimensions & 127u);
            at::Tensor into;
            (void)wire::decode(some, into);
        }
    wire::writer large;
    large.fixed(std::uint8_t{9});
    large.varint(3);
    for (const auto size : {std::uint64_t{1} << 40, std::uint64_t{1} << 40, std::uint64_t{0}})
        large.varint(size);
    at::Tensor into;
    CHECK(!wire::decode(large.bytes(), into));
    auto truth = wire::encode(at::ones({3}, at::TensorOptions(at::kBool)));
    CHECK(wire::decode(truth, into));
    truth.back() = std::byte{2};
    CHECK(!wire::decode(truth, into));
    CHECK(!wire::codec<at::Tensor>::in_place(truth, nullptr));
}

} // namespace tensor_messages
