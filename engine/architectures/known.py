"""The architectures that have been tried: what runs each, or why it is refused.

`tests/parity/test_architectures.py` builds a small model of each row and proves what the row says.
`continuo models` prints the table, and docs/models.md has it.
"""

from typing import Literal, NamedTuple

Way = Literal["C", "torch", "transformers", "refused"]
"""The fastest code that runs an architecture:

    C               our decoder, a whole step in C on a CPU, torch on a GPU
    torch           our decoder, in torch
    transformers    transformers' own module, with our paged attention
    refused         an error at load that names the architecture and the cause
"""


class KnownArchitecture(NamedTuple):
    name: str
    """The architecture, as config.json calls it."""
    models: str
    """Models that people know it by."""
    way: Way
    reason: str = ""
    """Why it is refused: a clause, such as "it has an encoder"."""


_RECURRENT = "it has recurrent layers of a kind that is not supported"

KNOWN_ARCHITECTURES = (
    KnownArchitecture("LlamaForCausalLM", "Llama 2, 3.x", "C"),
    KnownArchitecture("MistralForCausalLM", "Mistral 7B, Nemo", "C"),
    KnownArchitecture("Qwen2ForCausalLM", "Qwen 2, 2.5", "C"),
    KnownArchitecture("Qwen3ForCausalLM", "Qwen 3 (dense)", "C"),
    KnownArchitecture("SmolLM3ForCausalLM", "SmolLM 3", "C"),
    KnownArchitecture("Gemma2ForCausalLM", "Gemma 2", "C"),
    KnownArchitecture("Gemma3ForCausalLM", "Gemma 3 1B", "C"),
    KnownArchitecture("Gemma3ForConditionalGeneration", "Gemma 3 4B to 27B", "C"),
    KnownArchitecture("Qwen3MoeForCausalLM", "Qwen 3 MoE", "C"),
    KnownArchitecture("MixtralForCausalLM", "Mixtral", "C"),
    KnownArchitecture("GptOssForCausalLM", "gpt-oss 20B, 120B", "C"),
    KnownArchitecture("Phi3ForCausalLM", "Phi 3, 3.5, 4", "C"),
    KnownArchitecture("Mistral3ForConditionalGeneration", "Mistral Small 3.x", "C"),
    KnownArchitecture("Qwen3_5ForCausalLM", "Qwen 3.5 (text)", "C"),
    KnownArchitecture("Qwen3_5ForConditionalGeneration", "Qwen 3.5 (dense)", "C"),
    KnownArchitecture("Qwen3_5MoeForCausalLM", "Qwen 3.5 MoE (text)", "C"),
    KnownArchitecture("Qwen3_5MoeForConditionalGeneration", "Qwen 3.5 MoE, 3.6 35B-A3B", "C"),
    KnownArchitecture("Qwen3NextForCausalLM", "Qwen 3 Next", "C"),
    KnownArchitecture("Lfm2ForCausalLM", "LFM 2, 2.5", "C"),
    KnownArchitecture("Lfm2MoeForCausalLM", "LFM 2 MoE", "torch"),
    KnownArchitecture("GraniteMoeHybridForCausalLM", "Granite 4", "torch"),
    KnownArchitecture("NemotronHForCausalLM", "Nemotron-H, Nemotron Nano 2, 3 Nano", "torch"),
    KnownArchitecture("FalconH1ForCausalLM", "Falcon-H1", "torch"),
    KnownArchitecture("BambaForCausalLM", "Bamba", "torch"),
    KnownArchitecture("GraniteForCausalLM", "Granite 3", "C"),
    KnownArchitecture("GraniteMoeForCausalLM", "Granite 3 MoE", "C"),
    KnownArchitecture("MinistralForCausalLM", "Ministral 8B", "C"),
    KnownArchitecture("Ministral3ForCausalLM", "Ministral 3", "transformers"),
    KnownArchitecture("GemmaForCausalLM", "Gemma", "C"),
    KnownArchitecture("Gemma3nForCausalLM", "Gemma 3n", "transformers"),
    KnownArchitecture("Gemma4ForCausalLM", "Gemma 4 (text)", "torch"),
    KnownArchitecture("Gemma4ForConditionalGeneration", "Gemma 4", "torch"),
    KnownArchitecture("Qwen2MoeForCausalLM", "Qwen 1.5 MoE, 2 57B", "C"),
    KnownArchitecture("OlmoeForCausalLM", "OLMoE", "transformers"),
    KnownArchitecture("OlmoForCausalLM", "OLMo", "transformers"),
    KnownArchitecture("Olmo2ForCausalLM", "OLMo 2", "transformers"),
    KnownArchitecture("Olmo3ForCausalLM", "OLMo 3", "transformers"),
    KnownArchitecture("GlmForCausalLM", "GLM 4 9B", "transformers"),
    KnownArchitecture("Glm4ForCausalLM", "GLM 4 0414", "transformers"),
    KnownArchitecture("Glm4MoeForCausalLM", "GLM 4.5, 4.6", "transformers"),
    KnownArchitecture("Glm4MoeLiteForCausalLM", "GLM 4.7 Flash", "transformers"),
    KnownArchitecture("DeepseekV2ForCausalLM", "DeepSeek V2", "transformers"),
    KnownArchitecture("DeepseekV3ForCausalLM", "DeepSeek V3, R1, Kimi K2", "transformers"),
    KnownArchitecture("PhiForCausalLM", "Phi 1, 2", "transformers"),
    KnownArchitecture("PhimoeForCausalLM", "Phi 3.5 MoE", "transformers"),
    KnownArchitecture("SeedOssForCausalLM", "Seed-OSS", "transformers"),
    KnownArchitecture("Exaone4ForCausalLM", "EXAONE 4", "transformers"),
    KnownArchitecture("Ernie4_5ForCausalLM", "ERNIE 4.5", "transformers"),
    KnownArchitecture("Ernie4_5_MoeForCausalLM", "ERNIE 4.5 MoE", "transformers"),
    KnownArchitecture("HunYuanDenseV1ForCausalLM", "Hunyuan (dense)", "transformers"),
    KnownArchitecture("ApertusForCausalLM", "Apertus", "transformers"),
    KnownArchitecture("MiniMaxM2ForCausalLM", "MiniMax M2", "transformers"),
    KnownArchitecture("BitNetForCausalLM", "BitNet b1.58", "transformers"),
    KnownArchitecture("CohereForCausalLM", "Command R", "transformers"),
    KnownArchitecture("Cohere2ForCausalLM", "Command R7B, Command A", "transformers"),
    KnownArchitecture("NemotronForCausalLM", "Nemotron 3 8B", "transformers"),
    KnownArchitecture("Starcoder2ForCausalLM", "StarCoder 2", "transformers"),
    KnownArchitecture("GPTNeoXForCausalLM", "Pythia", "transformers"),
    KnownArchitecture("GPT2LMHeadModel", "GPT-2", "transformers"),
    KnownArchitecture("ArceeForCausalLM", "Arcee AFM", "transformers"),
    KnownArchitecture("HeliumForCausalLM", "Helium", "transformers"),
    KnownArchitecture("Qwen3VLForConditionalGeneration", "Qwen 3 VL", "C"),
    KnownArchitecture("Qwen2_5_VLForConditionalGeneration", "Qwen 2.5 VL", "C"),
    KnownArchitecture("LlavaForConditionalGeneration", "LLaVA", "C"),
    KnownArchitecture(
        "Llama4ForCausalLM", "Llama 4", "refused", "it has layers with chunked attention"
    ),
    KnownArchitecture("KimiLinearForCausalLM", "Kimi Linear", "refused", _RECURRENT),
    KnownArchitecture("JambaForCausalLM", "Jamba", "refused", _RECURRENT),
    KnownArchitecture("OlmoHybridForCausalLM", "OLMo Hybrid", "refused", _RECURRENT),
    KnownArchitecture("MambaForCausalLM", "Mamba", "refused", "it has no layer with attention"),
    KnownArchitecture(
        "BloomForCausalLM", "BLOOM", "refused", "its attention has no rotary positions"
    ),
    KnownArchitecture("FalconForCausalLM", "Falcon", "refused", "its attention cannot be replaced"),
    KnownArchitecture("T5ForConditionalGeneration", "T5", "refused", "it has an encoder"),
)


def find_refusal(architecture: str) -> str | None:
    """Return why an architecture is refused. Returns None if it runs, or has not been tried."""
    reasons = {each.name: each.reason for each in KNOWN_ARCHITECTURES if each.way == "refused"}
    return reasons.get(architecture)
