"""A harness of verifiers that asks its model in this process: one message of the assistant for each segment."""

import httpx
import verifiers.v1 as vf

__all__ = ["InProcessChat"]


class InProcessChat(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [] if system is None else [{"role": "system", "content": system}]
        said = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
        messages += [{"role": one.role, "content": one.content} for one in said]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}) as client:
            reply = await client.post(f"{endpoint}/chat/completions", json={"model": ctx.model, "messages": messages})
        # A turn that the framework refuses ends the conversation, and is no fault of the program's.
        return vf.ProgramResult(0 if reply.is_success or trace.stop_condition else 1, "", reply.text)
