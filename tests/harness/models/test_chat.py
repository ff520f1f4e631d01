from __future__ import annotations

from pathlib import Path

import pytest

from evals.prompts import Message
from harness.errors import RefusedError
from harness.models.chat import TemplateCheck, check_template
from harness.models.language_model import LanguageModel, load_model
from harness.models.tiny import tiny_model, tiny_tokenizer
from tests.harness.models.folders import CHATML, chat_folder, chat_tokenizer
from tests.refusals import refuses

ASK: list[Message] = [{"role": "user", "content": "2+2="}]
ZEPHYR = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


class TestTheTokenizersTemplate:
    def test_frames_messages(self, tmp_path: Path) -> None:
        tokenizer = chat_tokenizer()
        made = load_model(f"path:{chat_folder(tmp_path / 'm', tokenizer)}")
        assert made.chat_template == "tokenizer"
        assert made.encode(ASK)[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
        text = "<|im_start|>user\n2+2=<|im_end|>\n<|im_start|>assistant\n"
        assert made.encode(ASK) == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert made.account()["chat_template"] == "tokenizer"

    def test_frames_a_reply_between_two_answers(self, tmp_path: Path) -> None:
        """As messages one after the other would be; the end of the answer is there once, whoever wrote it."""
        tokenizer = chat_tokenizer()
        made = load_model(f"path:{chat_folder(tmp_path / 'm', tokenizer)}")
        talk: list[Message] = [*ASK, {"role": "assistant", "content": "5"}, {"role": "user", "content": "4+"}]
        asked, answer = made.encode(ASK), made.encode_text("5")
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        for own in ([*answer, end], answer):
            assert [*asked, *own, *made.encode_reply("4+", in_chat=True, behind=own[-1])] == made.encode(talk)
        assert made.encode_reply("4+", in_chat=False, behind=end) == made.encode_text("4+")
        plain = LanguageModel(made.model, tokenizer, "plain")
        assert plain.encode_reply("4+", in_chat=True, behind=end) == plain.encode_text("\n\n4+\n\n")

    def test_is_left_aside_if_plain_is_asked_for(self, tmp_path: Path) -> None:
        made = load_model(f"path:{chat_folder(tmp_path / 'm', chat_tokenizer())}", chat_template="plain")
        assert made.encode(ASK) == made.encode("2+2=\n\n")
        assert made.eos_token_ids == [1], "its end of a turn is not an end under another template"
        assert "plain" in made.remarks()[0]

    def test_without_one_plain_is_used_unless_one_is_asked_for(self) -> None:
        made = load_model("builtin:tiny")
        assert made.chat_template == "plain" and "plain" in made.remarks()[0]
        with refuses(RefusedError, "models.chat_template_missing"):
            load_model("builtin:tiny", chat_template="tokenizer")

    def test_writes_the_beginning_of_sequence_once(self, tmp_path: Path) -> None:
        """A text gets it from the tokenizer, a chat from the template, and neither gets two."""
        from tokenizers.processors import TemplateProcessing

        tokenizer = chat_tokenizer("{{ bos_token }}" + CHATML, bos_token="<bos>")
        bos = tokenizer.bos_token_id
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", bos)]
        )
        made = LanguageModel(tiny_model(seed=0), tokenizer)
        assert made.encode("1+1=")[0] == bos
        for prompt in ("1+1=", ASK):
            assert made.encode(prompt).count(bos) == 1

    def test_that_cannot_write_a_role_is_refused_with_its_reason(self) -> None:
        tokenizer = chat_tokenizer(
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
        )
        made = LanguageModel(tiny_model(seed=0), tokenizer)
        made.encode(ASK)
        with refuses(RefusedError, "models.chat_template_rejects_roles", roles="system, user"):
            made.encode([{"role": "system", "content": "1"}, *ASK])


class TestTheEndOfATurn:
    def test_ends_a_completion_though_nothing_else_names_it(self, tmp_path: Path) -> None:
        """As of a base model whose tokenizer brings the template of its chat sibling."""
        tokenizer = chat_tokenizer()
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        made = load_model(f"path:{chat_folder(tmp_path / 'm', tokenizer, eos_token_id=1)}")
        assert made.eos_token_ids == [1, end]
        assert any("<|im_end|>" in remark for remark in made.remarks())

    def test_that_is_named_needs_no_remark(self, tmp_path: Path) -> None:
        tokenizer = chat_tokenizer(eos_token="<|im_end|>")
        made = load_model(f"path:{chat_folder(tmp_path / 'm', tokenizer)}")
        assert made.eos_token_ids == [tokenizer.eos_token_id]
        assert not any("<|im_end|>" in remark for remark in made.remarks())

    def test_is_found_behind_a_space(self) -> None:
        """Llama 2 and Mistral write one before </s>."""
        tokenizer = chat_tokenizer("{% for m in messages %}{{ m.content }} <|im_end|>{% endfor %}")
        assert check_template(tokenizer).turn_end == tokenizer.convert_tokens_to_ids("<|im_end|>")

    @pytest.mark.parametrize(
        "template",
        [
            "{% for m in messages %}{{ m.content }}\n{% endfor %}",
            "{% for m in messages %}{{ m.content }}</answer>{% endfor %}",
        ],
    )
    def test_need_not_be_a_token(self, template: str) -> None:
        assert check_template(chat_tokenizer(template)) == TemplateCheck(None, ())


class TestATemplateOfAnotherTokenizer:
    @pytest.mark.parametrize(
        ("template", "named"),
        [
            (CHATML, "<|im_start|>, <|im_end|>"),
            (
                "{% for m in messages %}<start_of_turn>{{ m.content }}<end_of_turn>{% endfor %}",
                "<start_of_turn>, <end_of_turn>",
            ),
            ("{% for m in messages %}<｜User｜>{{ m.content }}{% endfor %}", "<｜User｜>"),
        ],
    )
    def test_is_refused_with_what_is_split(self, tmp_path: Path, template: str, named: str) -> None:
        folder = chat_folder(tmp_path / "m", chat_tokenizer(template, special=()))
        with refuses(RefusedError, "models.chat_template_of_other_tokenizer", tokens=named):
            load_model(f"path:{folder}")
        assert load_model(f"path:{folder}", chat_template="plain").chat_template == "plain"

    def test_is_not_one_that_spells_roles_out_but_ends_with_a_token(self, tmp_path: Path) -> None:
        made = load_model(f"path:{chat_folder(tmp_path / 'm', chat_tokenizer(ZEPHYR, special=()))}")
        assert made.chat_template == "tokenizer"
        assert any("<|user|>" in remark and "<|assistant|>" in remark for remark in made.remarks())

    def test_a_marker_that_becomes_the_unknown_token_is_not_known(self) -> None:
        tokenizer = tiny_tokenizer()
        tokenizer.backend_tokenizer.pre_tokenizer = None  # words of one token, known or not
        tokenizer.chat_template = CHATML
        assert "<|im_end|>" in check_template(tokenizer).split
