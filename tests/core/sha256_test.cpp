// SPDX-License-Identifier: Apache-2.0
#include <skein/core/random.hpp>
#include <skein/core/sha256.hpp>

#include <catch2/catch_test_macros.hpp>

using skein::as_bytes;
using skein::to_hex;

TEST_CASE("the FIPS 180-4 examples come out") {
    CHECK(to_hex(skein::sha256_of(as_bytes("abc"))) ==
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(to_hex(skein::sha256_of({})) ==
          "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(to_hex(skein::sha256_of(
              as_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(to_hex(skein::sha256_of(as_bytes(std::string(1'000'000, 'a')))) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("pieces give the same digest as the whole") {
    const std::string text(300, 'p');
    const auto whole = skein::sha256_of(as_bytes(text));
    for (std::size_t step = 1; step < 150; ++step) {
        skein::sha256 hash;
        for (std::size_t at = 0; at < text.size(); at += step)
            hash.update(std::string_view(text).substr(at, step));
        REQUIRE(hash.finish() == whole);
    }
}

TEST_CASE("the instructions of the CPU give what plain code gives") {
    if (!skein::sha256_is_hardware()) SKIP("this CPU has none");
    skein::byte_buffer bytes(64 * 40 + 3);
    skein::seeded_random(7).fill(bytes);
    skein::detail::sha256_state fast{}, plain{};
    for (std::size_t blocks = 0; blocks < 40; ++blocks) {
        const auto* from = bytes.data() + blocks % 4; // not only aligned
        skein::detail::sha256_blocks(fast, from, blocks);
        skein::detail::sha256_plain(plain, from, blocks);
        REQUIRE(fast == plain);
    }
    CHECK(fast != skein::detail::sha256_state{});
}

TEST_CASE("the RFC 4231 examples of HMAC-SHA-256 come out") {
    const auto key1 = std::string(20, '\x0b');
    CHECK(to_hex(skein::hmac_sha256(as_bytes(key1), as_bytes("Hi There"))) ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(to_hex(skein::hmac_sha256(as_bytes("Jefe"), as_bytes("what do ya want "),
                                    as_bytes("for nothing?"))) ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    const auto key3 = std::string(20, '\xaa'), data3 = std::string(50, '\xdd');
    CHECK(to_hex(skein::hmac_sha256(as_bytes(key3), as_bytes(data3))) ==
          "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    const auto key6 = std::string(131, '\xaa'); // longer than a block
    CHECK(
        to_hex(skein::hmac_sha256(
            as_bytes(key6), as_bytes("Test Using Larger Than Block-Size Key - Hash Key First"))) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("secrets are equal only when every byte is") {
    const auto a = skein::sha256_of(as_bytes("a"));
    auto b = a;
    CHECK(skein::equal_constant_time(a, b));
    for (auto& byte : b) {
        byte ^= std::byte{0x80};
        CHECK_FALSE(skein::equal_constant_time(a, b));
        byte ^= std::byte{0x80};
    }
    CHECK_FALSE(skein::equal_constant_time(a, skein::byte_span(a).first(31)));
    CHECK(skein::equal_constant_time({}, {}));
}
