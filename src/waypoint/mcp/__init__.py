"""The MCP server: Waypoint as tools for a model, over stdin and stdout.

It uses the SDK like any other client and keeps no state of its own: it can be killed and started again at any
moment. **server** puts it together, with resources, prompts and instructions for the model. **registry** is
what a tool is. **tools/** are the tools by subject. **pages** cut answers to a size for a model. **pending**
are commands that wait for the approval of a user.
"""
