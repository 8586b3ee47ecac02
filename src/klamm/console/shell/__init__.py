"""What all pages share: the frame around them, tables, charts, dialogs, the palette, addresses."""
